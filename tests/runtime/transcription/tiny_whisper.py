"""A tiny Whisper with random weights that writes times, as transformers saves it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tests.modeling.tiny_encoders import EncoderCase
from tests.tiny.encoders import WHISPER
from tests.tiny.tokenizers import of_words
from transformers import PreTrainedModel

WORDS = 60
EOS, START, EN, DE, TRANSCRIBE, TRANSLATE, NO_TIMES = range(WORDS, WORDS + 7)
SPECIAL = ("<eos>", "<sot>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|notimes|>")
FIRST_TIME = NO_TIMES + 1
VECTORS = 50
"""Encoder vectors in a window of one second; 20 ms each, as in Whisper."""

RATE, WINDOW = 16_000, 16_000
"""Samples per second, and of a window."""

VALUES: dict[str, Any] = WHISPER | {
    "vocab_size": FIRST_TIME + VECTORS + 1,
    "num_mel_bins": 20,
    "max_source_positions": VECTORS,
    "max_target_positions": 32,
    "pad_token_id": EOS,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": START,
}

GENERATION: dict[str, Any] = {
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "decoder_start_token_id": START,
    "max_length": 32,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMES,
    "max_initial_timestamp_index": 10,
    "suppress_tokens": [7, START, EN, DE, TRANSCRIBE, TRANSLATE],
    "begin_suppress_tokens": [3, EOS],
    "return_timestamps": False,
}


def write_whisper(folder: Path, *, spread: float = 0.5, **generation: Any) -> Any:
    """Save a checkpoint with a tokenizer, and return the model of transformers.

    Args:
        folder: of the checkpoint.
        spread: standard deviation of the weights.
        **generation: keys of generation_config.json that differ; None leaves a key out.
    """
    case = EncoderCase("WhisperForConditionalGeneration", VALUES, spread=spread)
    model: PreTrainedModel = case.write(folder)
    values = {key: value for key, value in (GENERATION | generation).items() if value is not None}
    (folder / "generation_config.json").write_text(json.dumps(values))
    extractor = {"feature_size": 20, "chunk_length": 1, "sampling_rate": RATE}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    (folder / "tokenizer.json").write_text(_tokenizer().to_str())
    config: Any = type(model.generation_config)
    model.generation_config = config(**values)
    return model


def _tokenizer() -> tokenizers.Tokenizer:
    times = [f"<|{0.02 * step:.2f}|>" for step in range(VECTORS + 1)]
    names = [*(f"w{number}" for number in range(WORDS)), *SPECIAL, *times]
    tokenizer = of_words(names, SPECIAL, "w0")
    tokenizer.add_tokens(times)
    return tokenizer


def sound(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Tones that change several times a second, with noise."""
    random, count = np.random.default_rng(seed), int(seconds * RATE)
    pitches = np.repeat(random.uniform(100, 4000, count // 2000 + 1), 2000)[:count]
    tone = np.sin(2 * np.pi * np.cumsum(pitches) / RATE)
    loud = np.repeat(random.uniform(0, 0.5, count // 3000 + 1), 3000)[:count]
    return (loud * tone + 0.02 * random.normal(size=count)).astype(np.float32)

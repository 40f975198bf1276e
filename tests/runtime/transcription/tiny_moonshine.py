"""A tiny Moonshine with random weights, as transformers saves it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.transcription.tiny_wav2vec2 import extractor
from tests.tiny.encoders import MOONSHINE
from tests.tiny.tokenizers import of_words

START, EOS = 1, 2

HOP, WINDOW = 384, 895
"""Samples from one vector to the next, and of a vector."""

TOKENS_PER_SECOND = 6.5

VALUES: dict[str, Any] = MOONSHINE | {"max_position_embeddings": 208}


def write_moonshine(folder: Path, **values: Any) -> Any:
    """Save a checkpoint with a tokenizer, and return the model of transformers.

    Args:
        folder: of the checkpoint.
        **values: keys of config.json that differ.
    """
    case = EncoderCase("MoonshineForConditionalGeneration", VALUES | values, spread=0.5)
    model = case.write(folder)
    special = ("<unk>", "<s>", "</s>")
    tokenizer = of_words([*special, *(f"w{n}" for n in range(3, 99))], special, "<unk>")
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    extractor(folder, do_normalize=False)
    return model


def greedy(model: Any, samples: NDArray[np.float32]) -> list[int]:
    """Tokens of transformers within 6.5 tokens per second, without the start and EOS."""
    most = int(np.ceil(len(samples) / 16_000 * TOKENS_PER_SECOND))
    with torch.inference_mode():
        wave = torch.from_numpy(samples[None])
        ids = model.generate(wave, do_sample=False, max_new_tokens=most)[0].tolist()
    return [token for token in ids[1:] if token != EOS]

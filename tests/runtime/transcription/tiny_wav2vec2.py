"""A tiny wav2vec 2.0 with CTC and random weights, as transformers saves it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.transcription.tiny_whisper import RATE, sound
from tests.tiny.encoders import WAV2VEC2
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEF'")

HOP, WINDOW = 160, 346
"""Samples from one vector to the next, and of a vector."""

VALUES: dict[str, Any] = WAV2VEC2 | {
    "vocab_size": len(SYMBOLS),
    "conv_kernel": [10, 8, 8],
    "conv_stride": [8, 5, 4],
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}


def write_wav2vec2(
    folder: Path, *, symbols: tuple[str, ...] = SYMBOLS, normalized: bool = True, **values: Any
) -> Any:
    """Save a checkpoint with its vocabulary, and return the model of transformers.

    Its logits are scaled so that many symbols are heard.

    Args:
        folder: of the checkpoint.
        symbols: of vocab.json.
        normalized: whether waves are.
        **values: keys of config.json that differ.
    """
    model: Any = EncoderCase("Wav2Vec2ForCTC", VALUES | values, spread=0.3).reference()
    with torch.no_grad():
        wave = torch.from_numpy(heard(sound(2.0, seed=9), normalized=normalized)[None])
        spread, mean = torch.std_mean(model(wave).logits[0], 0)
        head = model.lm_head
        head.weight /= spread[:, None]
        head.bias.copy_((head.bias - mean) / spread)
        head.bias[0] += 0.5  # the blank
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({own: n for n, own in enumerate(symbols)}))
    tokenizer(folder).save_pretrained(folder)
    extractor(folder, do_normalize=normalized)
    return model


def tokenizer(folder: Path, **options: Any) -> Any:
    """The tokenizer of transformers for a vocab.json."""
    kind: Any = Wav2Vec2CTCTokenizer
    return kind(str(folder / "vocab.json"), **options)


def extractor(folder: Path, **options: Any) -> Any:
    """Save a feature extractor, and return it."""
    kind: Any = Wav2Vec2FeatureExtractor
    made = kind(**options)
    made.save_pretrained(folder)
    return made


def heard(samples: NDArray[np.float32], *, normalized: bool = True) -> NDArray[np.float32]:
    """Samples as transformers' feature extractor gives them."""
    kind: Any = Wav2Vec2FeatureExtractor
    values = kind(do_normalize=normalized)(samples, sampling_rate=RATE).input_values[0]
    return np.asarray(values, np.float32)


def logits_of(model: Any, samples: NDArray[np.float32], *, normalized: bool = True) -> Any:
    """Logits `(vectors, symbols)` of the model of transformers."""
    with torch.inference_mode():
        wave = torch.from_numpy(heard(samples, normalized=normalized)[None])
        return model(wave).logits[0].numpy()

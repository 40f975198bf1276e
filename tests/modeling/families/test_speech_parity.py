"""Whisper against Hugging Face transformers: the same checkpoint, the same logits and tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.speech import assert_like_transformers, assert_same_greedy_tokens
from tests.modeling.tiny_encoders import EncoderCase
from tests.tiny.encoders import WHISPER
from torch import Tensor

from ortolan.modeling import EncoderDecoderModel, load
from ortolan.modeling.errors import WeightError


def case(**values: Any) -> EncoderCase:
    return EncoderCase("WhisperForConditionalGeneration", WHISPER | values)


def features(values: dict[str, Any], count: int = 3) -> Tensor:
    shape = count, values["num_mel_bins"], 2 * values["max_source_positions"]
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


CASES = {
    "plain": case(),
    "scaled": case(scale_embedding=True),
    "relu": case(activation_function="relu", num_mel_bins=5, max_source_positions=7),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_whisper_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    assert_like_transformers(CASES[name], tmp_path, features(CASES[name].values))


def test_greedy_tokens_equal_those_of_transformers(tmp_path: Path) -> None:
    # Smaller weights repeat one token whatever the sound.
    case_of_tokens = replace(case(max_target_positions=24), spread=0.5)
    assert_same_greedy_tokens(case_of_tokens, tmp_path, features(WHISPER))


def test_a_shorter_context_limits_the_text_and_not_the_sound(tmp_path: Path) -> None:
    case().write(tmp_path)
    config = load(tmp_path, EncoderDecoderModel, max_context=8).config
    assert config.decoder.context_length == 8
    assert config.encoder.context_length == WHISPER["max_source_positions"]


def test_a_spectrogram_of_another_length_is_rejected(tmp_path: Path) -> None:
    case().write(tmp_path)
    model = load(tmp_path, EncoderDecoderModel)
    with pytest.raises(ValueError, match="Pad or split"):
        model(features(WHISPER)[..., :-1], torch.zeros(3, 1, dtype=torch.int64))


def test_a_bias_of_keys_which_whisper_lacks_is_rejected(tmp_path: Path) -> None:
    case().write(tmp_path)
    path = tmp_path / "model.safetensors"
    name = "model.encoder.layers.0.self_attn.k_proj.bias"
    save_file(load_file(path) | {name: torch.ones(32)}, path, metadata={"format": "pt"})
    with pytest.raises(WeightError, match=f"unexpected {name}"):
        load(tmp_path, EncoderDecoderModel)

"""Moonshine against Hugging Face transformers: the same checkpoint, the same logits and tokens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.speech import assert_like_transformers, assert_same_greedy_tokens, logits
from tests.modeling.tiny_encoders import EncoderCase
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import MOONSHINE
from torch import Tensor

from ortolan.modeling import EncoderDecoderModel, load
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderDecoderConfig, WaveInput
from ortolan.modeling.errors import WeightError

HOP, WINDOW = 384, 895


def case(**values: Any) -> EncoderCase:
    return EncoderCase("MoonshineForConditionalGeneration", MOONSHINE | values, spread=0.2)


def waves(samples: int = 12_345, count: int = 3) -> Tensor:
    return torch.randn(count, samples, generator=torch.Generator().manual_seed(samples))


CASES = {
    "plain": case(),
    # the widths of the published tiny and base models
    "tiny": case(hidden_size=72),
    "base": case(hidden_size=104, partial_rotary_factor=0.62),
    "no padding": case(hidden_size=32, partial_rotary_factor=1.0),
    "biases": case(attention_bias=True),
    "padded in transformers": case(pad_head_dim_to_multiple_of=8),
    "activations": case(encoder_hidden_act="relu", decoder_hidden_act="gelu"),
    "base of wavelengths": case(rope_theta=123.0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_moonshine_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    assert_like_transformers(CASES[name], tmp_path, waves())


@pytest.mark.parametrize("samples", [WINDOW, WINDOW + HOP - 1, WINDOW + HOP, 4001, 20_011])
def test_waves_of_any_length_give_the_same_logits(samples: int, tmp_path: Path) -> None:
    reference = case().write(tmp_path)
    model = load(tmp_path, EncoderDecoderModel)
    source = model.config.encoder.input
    assert isinstance(source, WaveInput)
    assert (source.window, source.hop) == (WINDOW, HOP)
    wave, ids = waves(samples), torch.tensor([[1, 7, 30]] * 3)
    with torch.inference_mode():
        assert model.encode(wave).shape[1] == (samples - WINDOW) // HOP + 1
        ours = model(wave, ids)
    assert_same_logits(ours, logits(reference, wave, ids))


def test_greedy_tokens_equal_those_of_transformers(tmp_path: Path) -> None:
    assert_same_greedy_tokens(replace(case(), spread=0.5), tmp_path, waves())


def test_a_shorter_context_limits_the_text_and_not_the_sound(tmp_path: Path) -> None:
    case().write(tmp_path)
    config = load(tmp_path, EncoderDecoderModel, max_context=8).config
    assert config.decoder.context_length == 8
    assert config.encoder.context_length == 1250


def test_keys_of_older_checkpoints_are_read(tmp_path: Path) -> None:
    case().write(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())
    expected = config_from_hf(published, EncoderDecoderConfig)
    published.pop("rope_parameters")
    older = {"partial_rotary_factor": 0.9, "rope_scaling": None, "rope_theta": 10_000.0}
    older |= {"pad_head_dim_to_multiple_of": 8, "attention_dropout": 0.1, "use_cache": True}
    assert config_from_hf(published | older, EncoderDecoderConfig) == expected


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.encoder.layers.0.self_attn.q_proj.weight", (32, 36), r"expected shape \(36, 36\)"),
        ("model.decoder.layers.1.encoder_attn.o_proj.weight", (36, 64), r"expected shape \(36, 36"),
        ("model.decoder.layers.0.mlp.fc1.weight", (48, 36), r"expected shape \(96, 36\)"),
        ("model.encoder.conv1.bias", (36,), "unexpected model.encoder.conv1.bias"),
    ],
)
def test_damaged_weights_are_rejected(
    name: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    case().write(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(shape)}, path, metadata={"format": "pt"})
    with pytest.raises(WeightError, match=message):
        load(tmp_path, EncoderDecoderModel)

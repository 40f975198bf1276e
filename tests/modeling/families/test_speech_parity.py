"""Whisper against Hugging Face transformers: the same checkpoint, the same logits and tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_encoders import EncoderCase
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import WHISPER
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.modeling import EncoderDecoderModel, load
from ortolan.modeling.errors import WeightError

STEPS = 12


def case(**values: Any) -> EncoderCase:
    return EncoderCase("WhisperForConditionalGeneration", WHISPER | values)


def features(values: dict[str, Any], count: int = 3) -> Tensor:
    shape = count, values["num_mel_bins"], 2 * values["max_source_positions"]
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def logits(model: PreTrainedModel, mel: Tensor, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        out: Tensor = model(input_features=mel, decoder_input_ids=ids).logits
    return out


CASES = {
    "plain": case(),
    "scaled": case(scale_embedding=True),
    "relu": case(activation_function="relu", num_mel_bins=5, max_source_positions=7),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_whisper_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    reference = CASES[name].write(tmp_path)
    model = load(tmp_path, EncoderDecoderModel)
    mel = features(CASES[name].values)
    ids = torch.randint(5, 90, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours = model(mel, ids)
    expected = logits(reference, mel, ids)
    assert_same_logits(ours, expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"


def test_greedy_tokens_equal_those_of_transformers(tmp_path: Path) -> None:
    # Smaller weights repeat one token whatever the sound.
    reference = replace(case(max_target_positions=24), spread=0.5).write(tmp_path)
    model = load(tmp_path, EncoderDecoderModel)
    mel = features(WHISPER)
    ours = expected = torch.full((3, 1), WHISPER["decoder_start_token_id"])
    for _ in range(STEPS):
        with torch.inference_mode():
            ours = torch.cat((ours, model(mel, ours)[:, -1:].argmax(-1)), 1)
        expected = torch.cat((expected, logits(reference, mel, expected)[:, -1:].argmax(-1)), 1)
    assert torch.equal(ours, expected)
    assert len({tuple(row) for row in ours.tolist()}) == 3, "tokens that ignore the sound"


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

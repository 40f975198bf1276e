"""wav2vec 2.0 and HuBERT against transformers: the same checkpoint, the same outputs."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_encoders import EncoderCase, reference_output
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import HUBERT, WAV2VEC2
from torch import Tensor, nn

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderConfig, WaveInput
from ortolan.modeling.errors import WeightError

CLASSES = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert"}

G, V = "weight_g", "weight_v"
NEW_G, NEW_V = "parametrizations.weight.original0", "parametrizations.weight.original1"
CONV = "wav2vec2.encoder.pos_conv_embed.conv."


def case(model_type: str = "wav2vec2", head: str = "ForCTC", **values: Any) -> EncoderCase:
    tiny = {"wav2vec2": WAV2VEC2, "hubert": HUBERT}[model_type]
    rest = {key: value for key, value in tiny.items() if key != "architectures"}
    return EncoderCase(f"{CLASSES[model_type]}{head}", rest | values)


def waves(samples: int = 1237, count: int = 2) -> Tensor:
    return torch.randn(count, samples, generator=torch.Generator().manual_seed(samples))


VARIANTS = {
    f"{model_type}-{norm}{'-bias' * bias}{'-stable' * stable}": case(
        model_type, feat_extract_norm=norm, conv_bias=bias, do_stable_layer_norm=stable
    )
    for model_type, norm, bias, stable in product(
        CLASSES, ("group", "layer"), (False, True), (False, True)
    )
}

CASES = VARIANTS | {
    "odd kernel": case(num_conv_pos_embeddings=7),
    "one group": case(num_conv_pos_embedding_groups=1, num_conv_pos_embeddings=128),
    "activations": case(feat_extract_activation="relu", hidden_act="gelu_new"),
    "eps": case(layer_norm_eps=0.2, num_attention_heads=4),
    "one convolution": case(conv_dim=[24], conv_kernel=[9], conv_stride=[7]),
    "no masks": case(mask_time_prob=0.0, mask_feature_prob=0.0),
    "no norm": case("hubert", feat_proj_layer_norm=False),
    "bare": case(head="Model"),
    "bare hubert": case("hubert", head="Model", do_stable_layer_norm=False),
    "pretraining": case(head="ForPreTraining", codevector_dim=32, proj_codevector_dim=16),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference: Any = CASES[name].write(tmp_path)
    model = load(tmp_path, EncoderModel)
    wave = waves()
    if "ForPreTraining" in CASES[name].architecture:
        reference = reference.wav2vec2
    expected = reference_output(reference, input_values=wave)
    with torch.inference_mode():
        ours = model(wave)
    assert_same_logits(ours, expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"


@pytest.mark.parametrize("extra", [0, 1, 15, 16, 17])
@pytest.mark.parametrize("norm", ["group", "layer"])
def test_waves_of_any_length_give_the_same_vectors(norm: str, extra: int, tmp_path: Path) -> None:
    reference = case(feat_extract_norm=norm, head="Model").write(tmp_path)
    model = load(tmp_path, EncoderModel)
    source = model.config.input
    assert isinstance(source, WaveInput)
    for samples in (source.window + extra, 997 + extra):
        wave = waves(samples)
        with torch.inference_mode():
            ours = model(wave)
        assert ours.shape[1] == (samples - source.window) // source.hop + 1
        assert_same_logits(ours, reference_output(reference, input_values=wave))


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the names of older versions of PyTorch."""
    return {name.replace(NEW_G, G).replace(NEW_V, V): own for name, own in tensors.items()}


def folded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the weight itself, as after `remove_weight_norm`."""
    conv: Any = nn.Conv1d(1, 1, 1)
    g, v = (tensors.pop(CONV + part) for part in (NEW_G, NEW_V))
    conv.weight = nn.Parameter(v)
    conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
    conv.parametrizations.weight.original0.data = g
    return tensors | {f"{CONV}weight": conv.weight.detach().contiguous()}


@pytest.mark.parametrize("change", [dict, renamed, folded])
def test_every_form_of_weight_norm_is_one_weight(change: Any, tmp_path: Path) -> None:
    reference = case().write(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {CONV + NEW_G, CONV + NEW_V} <= names
    rewrite(tmp_path, change)
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(waves())
    assert_same_logits(ours, reference_output(reference, input_values=waves()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: {k: t for k, t in own.items() if k != CONV + NEW_G}, "missing .*conv.weight"),
        (lambda own: own | {CONV + NEW_G: torch.ones(1, 1, 7)}, "must have the axes"),
        (lambda own: own | {CONV + NEW_G: torch.ones(8)}, "must have the axes"),
        (lambda own: own | {CONV + NEW_V: torch.ones(32, 4, 8)}, "expected shape"),
        (lambda own: own | {"lm_head.extra": torch.ones(3)}, "unexpected lm_head.extra"),
    ],
)
def test_damaged_weights_are_rejected(change: Any, message: str, tmp_path: Path) -> None:
    case().write(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(WeightError, match=message):
        load(tmp_path, EncoderModel)


def test_keys_of_older_checkpoints_change_nothing(tmp_path: Path) -> None:
    case().write(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())
    older = {
        *("feat_extract_dropout", "mask_channel_prob", "mask_channel_selection"),
        *("mask_time_other", "mask_time_min_space", "gradient_checkpointing"),
        *("no_mask_time_overlap", "freeze_feat_extract_train"),
    }
    read = config_from_hf(published | dict.fromkeys(older, 0.3), EncoderConfig)
    assert read == config_from_hf(published, EncoderConfig)
    absent = ("conv_dim", "conv_kernel", "conv_stride", "hidden_size")
    defaults = config_from_hf(
        {key: value for key, value in published.items() if key not in absent}, EncoderConfig
    )
    assert isinstance(defaults.input, WaveInput)
    assert (defaults.hidden_size, defaults.input.window, defaults.input.hop) == (768, 400, 320)

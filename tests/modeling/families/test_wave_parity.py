"""Models that read sounds against transformers: the same checkpoint, the same outputs."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_encoders import EncoderCase, reference_output
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import HUBERT, MOONSHINE, WAV2VEC2, WHISPER
from torch import Tensor, nn

from ortolan.modeling import EncoderDecoderModel, TransformerModel, load
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderConfig, EncoderDecoderConfig, ModelConfig, WaveInput

CLASSES = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert", "moonshine": "Moonshine"}

G, V = "weight_g", "weight_v"
NEW_G, NEW_V = "parametrizations.weight.original0", "parametrizations.weight.original1"
CONV = "wav2vec2.encoder.pos_conv_embed.conv."


def case(model_type: str = "wav2vec2", head: str = "ForCTC", **values: Any) -> EncoderCase:
    tiny = {"wav2vec2": WAV2VEC2, "hubert": HUBERT}[model_type]
    rest = {key: value for key, value in tiny.items() if key != "architectures"}
    return EncoderCase(f"{CLASSES[model_type]}{head}", rest | values)


def whisper(**values: Any) -> EncoderCase:
    return EncoderCase("WhisperForConditionalGeneration", WHISPER | values)


def moonshine(**values: Any) -> EncoderCase:
    return EncoderCase("MoonshineForConditionalGeneration", MOONSHINE | values, spread=0.2)


CASES = {
    **{
        f"{model_type}-{norm}{'-bias' * bias}{'-stable' * stable}": case(
            model_type, feat_extract_norm=norm, conv_bias=bias, do_stable_layer_norm=stable
        )
        for model_type, norm, bias, stable in product(
            ("wav2vec2", "hubert"), ("group", "layer"), (False, True), (False, True)
        )
    },
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
    "whisper": whisper(),
    "whisper, scaled": whisper(scale_embedding=True),
    "whisper, relu": whisper(activation_function="relu", num_mel_bins=5, max_source_positions=7),
    "moonshine": moonshine(),
    # the widths of the published tiny and base models
    "moonshine, tiny": moonshine(hidden_size=72),
    "moonshine, base": moonshine(hidden_size=104, partial_rotary_factor=0.62),
    "moonshine, no padding": moonshine(hidden_size=32, partial_rotary_factor=1.0),
    "moonshine, biases": moonshine(attention_bias=True),
    "moonshine, padded in transformers": moonshine(pad_head_dim_to_multiple_of=8),
    "moonshine, activations": moonshine(encoder_hidden_act="relu", decoder_hidden_act="gelu"),
    "moonshine, base of wavelengths": moonshine(rope_theta=123.0),
}


def waves(samples: int = 4321, count: int = 2) -> Tensor:
    return torch.randn(count, samples, generator=torch.Generator().manual_seed(samples))


def sound(values: dict[str, Any], samples: int = 4321) -> Tensor:
    """Two waves, or the spectrograms that Whisper reads."""
    if values["model_type"] != "whisper":
        return waves(samples)
    shape = 2, values["num_mel_bins"], 2 * values["max_source_positions"]
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def assert_same_outputs(model: TransformerModel, reference: Any, source: Tensor) -> None:
    inputs, given = [source], {reference.main_input_name: source}
    if isinstance(model, EncoderDecoderModel):
        ids = torch.randint(5, 90, (2, 9), generator=torch.Generator().manual_seed(1))
        inputs, given = [source, ids], given | {"decoder_input_ids": ids}
    if type(reference).__name__.endswith("ForPreTraining"):
        reference = reference.wav2vec2
    expected = reference_output(reference, **given)
    with torch.inference_mode():
        assert_same_logits(model(*inputs), expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"
    assert not torch.allclose(expected[0], expected[1], atol=0.1), "outputs that ignore the sound"


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference = CASES[name].write(tmp_path)
    assert_same_outputs(load(tmp_path, TransformerModel), reference, sound(CASES[name].values))


ANY_LENGTH = {
    "group": case(feat_extract_norm="group", head="Model"),
    "layer": case(feat_extract_norm="layer", head="Model"),
    "moonshine": moonshine(),
}


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_waves_of_any_length_give_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference = ANY_LENGTH[name].write(tmp_path)
    model: Any = load(tmp_path, TransformerModel)
    encoder = model.encoder if isinstance(model, EncoderDecoderModel) else model
    source = encoder.config.input
    assert isinstance(source, WaveInput)
    for more in (0, 1, source.hop - 1, source.hop, source.hop + 1, 997, 1998):
        wave = waves(source.window + more)
        assert_same_outputs(model, reference, wave)
        with torch.inference_mode():
            assert encoder(wave).shape[1] == more // source.hop + 1


@pytest.mark.parametrize(("name", "length"), [("whisper", 10), ("moonshine", 1250)])
def test_a_shorter_context_limits_the_text_and_not_the_sound(
    name: str, length: int, tmp_path: Path
) -> None:
    CASES[name].write(tmp_path)
    config = load(tmp_path, EncoderDecoderModel, max_context=8).config
    assert (config.decoder.context_length, config.encoder.context_length) == (8, length)


def test_a_spectrogram_of_another_length_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    CASES["whisper"].write(tmp_path)
    model = load(tmp_path, EncoderDecoderModel)
    with pytest.raises(ValueError, match="Pad or split") as caught:
        model(sound(WHISPER)[..., :-1], torch.zeros(2, 1, dtype=torch.int64))
    assert str(caught.value) == snapshot


# --- older checkpoints --------------------------------------------------------------------------


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


@pytest.mark.parametrize("change", [renamed, folded])
def test_every_form_of_weight_norm_is_one_weight(change: Any, tmp_path: Path) -> None:
    reference, path = case().write(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    assert {CONV + NEW_G, CONV + NEW_V} <= tensors.keys()
    save_file(change(tensors), path, metadata={"format": "pt"})
    assert_same_outputs(load(tmp_path, TransformerModel), reference, waves())


WITHOUT_EFFECT = (
    *("feat_extract_dropout", "mask_channel_prob", "mask_channel_selection"),
    *("mask_time_other", "mask_time_min_space", "gradient_checkpointing"),
    *("no_mask_time_overlap", "freeze_feat_extract_train"),
)

OLDER_MOONSHINE = {
    **{"partial_rotary_factor": 0.9, "rope_scaling": None, "rope_theta": 10_000.0},
    **{"pad_head_dim_to_multiple_of": 8, "attention_dropout": 0.1, "use_cache": True},
}


def test_keys_of_older_checkpoints_change_nothing(tmp_path: Path) -> None:
    for name, older in (
        ("bare", dict.fromkeys(WITHOUT_EFFECT, 0.3)),
        ("moonshine", OLDER_MOONSHINE),
    ):
        CASES[name].write(tmp_path)
        published = json.loads((tmp_path / "config.json").read_text())
        expected = config_from_hf(published, ModelConfig)
        published.pop("rope_parameters", None)
        assert config_from_hf(published | older, ModelConfig) == expected
    assert isinstance(expected, EncoderDecoderConfig)


def test_sizes_that_a_config_leaves_out_are_those_of_the_base_model() -> None:
    absent = ("conv_dim", "conv_kernel", "conv_stride", "hidden_size")
    values = {key: value for key, value in WAV2VEC2.items() if key not in absent}
    config = config_from_hf(values, EncoderConfig)
    assert isinstance(config.input, WaveInput)
    assert (config.hidden_size, config.input.window, config.input.hop) == (768, 400, 320)

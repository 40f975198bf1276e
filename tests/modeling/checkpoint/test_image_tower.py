"""The encoder of images of a multimodal checkpoint, and the decoder that reads it, as published."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.encoders import GEMMA3, IDEFICS3, INTERNVL, LLAVA, SMOLVLM
from transformers import PreTrainedModel

from ortolan.modeling import DecoderModel, EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.config import DecoderConfig, EncoderConfig, FeatureHead, PatchInput
from ortolan.modeling.layers.cache import StepLengths, empty_cache
from ortolan.modeling.layers.embeddings import Features

TOKEN = LLAVA["image_token_index"]

SIGLIP = LLAVA["vision_config"] | {"model_type": "siglip_vision_model"}


def internvl(**changes: Any) -> dict[str, Any]:
    return INTERNVL | {"vision_config": INTERNVL["vision_config"] | changes}


CASES: dict[str, dict[str, Any]] = {
    "clip": {},
    "clip, an early layer": {"vision_feature_layer": 1},
    "clip, all vectors": {"vision_feature_select_strategy": "full"},
    "siglip, the last layer": {
        "vision_config": SIGLIP,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "another projection": {"multimodal_projector_bias": False, "projector_hidden_act": "relu"},
    "qwen2": {"text_config": LLAVA["text_config"] | {"model_type": "qwen2"}},
    "idefics3": IDEFICS3,
    "idefics3, all patches": IDEFICS3 | {"scale_factor": 1},
    "smolvlm": SMOLVLM,
    "smolvlm, wide squares": SMOLVLM | {"scale_factor": 4},
    "internvl": INTERNVL,
    "internvl, as in the largest": internvl(
        use_qk_norm=True, norm_type="rms_norm", layer_norm_eps=1e-3
    ),
    "internvl, biases and a last norm": internvl(
        attention_bias=True, use_mean_pooling=False, use_mask_token=True
    ),
    "internvl, an early layer": internvl(use_mean_pooling=False) | {"vision_feature_layer": -2},
    "internvl, without the last norm": internvl(use_mean_pooling=False)
    | {"vision_feature_layer": 2},
    "internvl, all patches": INTERNVL | {"downsample_ratio": 1.0, "projector_hidden_act": "relu"},
    "internvl, wide squares": INTERNVL | {"downsample_ratio": 0.25},
    "internvl, qwen3": INTERNVL | {"text_config": LLAVA["text_config"] | {"model_type": "qwen3"}},
    "internvl, llama": INTERNVL | {"text_config": LLAVA["text_config"]},
}

PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def written(folder: Path, **changes: Any) -> PreTrainedModel:
    values = changes if "architectures" in changes else LLAVA | changes
    model = reference_model(values, architecture=values["architectures"][0])
    model.save_pretrained(folder)
    return model


def features_of(model: Any) -> torch.Tensor:
    output: Any = model.get_image_features(of_images(model))
    return torch.stack(list(getattr(output, "pooler_output", output)))


def of_images(model: Any) -> torch.Tensor:
    """The pixels of two images, each of one tile where a model takes tiles."""
    return PIXELS[:, None] if hasattr(model.config, "scale_factor") else PIXELS


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = written(tmp_path, **CASES[name])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    encoder, decoder = load(checkpoint.media, EncoderModel), load(checkpoint)
    assert decoder.config.feature_token_id == TOKEN
    with torch.inference_mode():
        vectors = encoder(PIXELS)
        expected = features_of(model)
        assert vectors.shape == expected.shape
        assert (vectors - expected).abs().max() <= 1e-4 * expected.abs().max()
        count = vectors.shape[1]
        ids = torch.tensor([[7, *[TOKEN] * count, 9, 10, *[TOKEN] * count, 11]])
        logits = decoder(ids, Features.of(vectors.flatten(0, 1), ids, TOKEN))
        whole = model(input_ids=ids, pixel_values=of_images(model)).logits
        assert_same_logits(logits, whole)
        assert not torch.allclose(logits, decoder(ids), atol=1e-2)
        text = ids[:, count + 1 : count + 3]
        assert_same_logits(decoder(text), reference_logits(model, text))


def gemma3(folder: Path, **changes: Any) -> tuple[Any, EncoderModel, DecoderModel]:
    """A Gemma 3 of transformers, with its encoder and decoder as Ortolan reads them."""
    model = written(folder, **GEMMA3 | changes)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    return model, load(checkpoint.media, EncoderModel), load(checkpoint, DecoderModel)


@pytest.mark.parametrize("count", [1, 4, 16, 64])
def test_vectors_of_gemma3_are_averages_that_see_each_other(count: int, tmp_path: Path) -> None:
    model, encoder, decoder = gemma3(tmp_path, mm_tokens_per_image=count)
    assert decoder.config.feature_attention == "both_ways"
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        vectors = encoder(pixels)
        assert vectors.shape[1] == encoder.config.vectors == count
        expected = model.get_image_features(pixels).pooler_output
        assert (vectors - expected).abs().max() <= 1e-4 * expected.abs().max()
        image, words = [TOKEN] * count, [9, 11, 12]
        images = 1 if count == 64 else 2  # within the context
        ids = torch.tensor([[*words, *[*image, *words] * images]])
        features = Features.of(vectors[:images].flatten(0, 1), ids, TOKEN)
        logits = decoder(ids, features)
        types = (ids == TOKEN).long()
        whole = model(input_ids=ids, pixel_values=pixels[:images], token_type_ids=types)
        assert_same_logits(logits, whole.logits)
        cache = empty_cache(decoder.config, batch=1, capacity=ids.shape[1])
        in_one_step, _ = decoder.step(
            ids, StepLengths.first(ids.shape[1]), cache, features=features
        )
        assert_same_logits(in_one_step, whole.logits)


def test_the_published_config_of_gemma3_is_read(tmp_path: Path) -> None:
    written(tmp_path, **GEMMA3)
    values = {
        **{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
        **{"boi_token_index": 255_999, "eoi_token_index": 256_000, "eos_token_id": [1, 106]},
        **{"image_token_index": 262_144, "initializer_range": 0.02, "mm_tokens_per_image": 256},
        "text_config": {
            **{"hidden_size": 2560, "intermediate_size": 10_240, "model_type": "gemma3_text"},
            **{"num_hidden_layers": 34, "sliding_window": 1024},
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "vision_config": {
            **{"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304},
            **{"model_type": "siglip_vision_model", "num_attention_heads": 16},
            **{"num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is not None
    config = read_config(checkpoint.media, EncoderConfig)
    assert isinstance(config.head, FeatureHead)
    assert (config.vectors, config.head.average, len(config.blocks)) == (256, 4, 27)
    assert config.head.projections[0].width == 2560
    decoder = read_config(checkpoint, DecoderConfig)
    assert (decoder.feature_token_id, decoder.feature_attention) == (262_144, "both_ways")


def test_old_configs_of_smolvlm_are_read(tmp_path: Path) -> None:
    model = written(tmp_path, **IDEFICS3)
    values = json.loads((tmp_path / "config.json").read_text())
    values["vision_config"] |= {
        "model_type": "idefics3",
        "max_image_size": {"longest_edge": 8},
        "size": {"longest_edge": 32},
        "use_base_siglip": False,
    }
    values["text_config"] |= {
        "is_llama_config": True,
        "perceiver_config": {"attention_dropout": 0.0},
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "use_resampler": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(values | {"vocab_size": 99}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is not None
    with torch.inference_mode():
        vectors = load(checkpoint.media, EncoderModel)(PIXELS)
    assert torch.allclose(vectors, features_of(model), atol=1e-4)
    assert load(checkpoint).config.feature_token_id == IDEFICS3["image_token_id"]


def test_a_config_without_its_defaults_is_read(tmp_path: Path) -> None:
    written(tmp_path, **INTERNVL)
    values = INTERNVL | {"vision_config": {"hidden_size": 32, "intermediate_size": 48}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    images = open_checkpoint(tmp_path).media
    assert images is not None
    config = read_config(images, EncoderConfig)
    assert isinstance(config.input, PatchInput)
    assert (config.input.image_size, config.input.patch_size) == ((448, 448), (14, 14))
    assert (len(config.blocks), config.vectors) == (24, 256)


def test_prefixes_of_old_and_new_checkpoints_are_read(tmp_path: Path) -> None:
    model = written(tmp_path)
    file = tmp_path / "model.safetensors"
    renamed = {
        f"model.vision_tower.vision_model.{name.removeprefix('vision_tower.')}"
        if name.startswith("vision_tower.")
        else name: tensor
        for name, tensor in load_file(file).items()
    }
    assert any(name.startswith("model.vision_tower.vision_model.") for name in renamed)
    save_file(renamed, file)
    images = open_checkpoint(tmp_path).media
    assert images is not None
    with torch.inference_mode():
        assert torch.allclose(load(images, EncoderModel)(PIXELS), features_of(model), atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_feature_layer": [-2, -1]},
        {"vision_feature_layer": 0},
        {"vision_config": LLAVA["vision_config"] | {"model_type": "pixtral"}},
    ],
)
def test_an_encoder_that_is_not_supported_is_left_out(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    written(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAVA | changes))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is None
    assert checkpoint.left_out == ("multi_modal_projector", "vision_tower")
    assert load(checkpoint).config.feature_token_id is None

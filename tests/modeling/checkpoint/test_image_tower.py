"""The encoder of images of a multimodal checkpoint, and the decoder that reads it, as published."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.encoders import LLAVA
from transformers import PreTrainedModel

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.embeddings import Features

TOKEN = LLAVA["image_token_index"]

SIGLIP = LLAVA["vision_config"] | {"model_type": "siglip_vision_model"}

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
}

PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def written(folder: Path, **changes: Any) -> PreTrainedModel:
    model = reference_model(LLAVA | changes, architecture="LlavaForConditionalGeneration")
    model.save_pretrained(folder)
    return model


def features_of(model: Any) -> torch.Tensor:
    output: Any = model.get_image_features(PIXELS)
    return torch.stack(list(getattr(output, "pooler_output", output)))


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = written(tmp_path, **CASES[name])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.images is not None
    assert checkpoint.left_out == ()
    encoder, decoder = load(checkpoint.images, EncoderModel), load(checkpoint)
    assert decoder.config.feature_token_id == TOKEN
    with torch.inference_mode():
        vectors = encoder(PIXELS)
        expected = features_of(model)
        assert vectors.shape == expected.shape
        assert (vectors - expected).abs().max() <= 1e-4 * expected.abs().max()
        count = vectors.shape[1]
        ids = torch.tensor([[7, *[TOKEN] * count, 9, 10, *[TOKEN] * count, 11]])
        logits = decoder(ids, Features.of(vectors.flatten(0, 1), ids, TOKEN))
        whole = model(input_ids=ids, pixel_values=PIXELS).logits
        assert_same_logits(logits, whole)
        assert not torch.allclose(logits, decoder(ids), atol=1e-2)
        text = ids[:, count + 1 : count + 3]
        assert_same_logits(decoder(text), reference_logits(model, text))


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
    images = open_checkpoint(tmp_path).images
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
    assert checkpoint.images is None
    assert checkpoint.left_out == ("multi_modal_projector", "vision_tower")
    assert load(checkpoint).config.feature_token_id is None


def test_an_unknown_choice_of_vectors_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(LLAVA | {"vision_feature_select_strategy": "x"})
    )
    images = open_checkpoint(tmp_path).images
    assert images is not None
    with pytest.raises(ConfigError, match="vision_feature_select_strategy must be default or full"):
        load(images, EncoderModel)

"""Encoders of images and of texts (CLIP, SigLIP) against Hugging Face transformers."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_encoders import (
    EncoderCase,
    Ragged,
    pooled_output,
    ragged,
    random_images,
)
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import CLIP, CLIP_TEXT, SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from torch import Tensor

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.contrast import Contrast, kind_of, read_contrast
from ortolan.modeling.checkpoint.folder import config_from_hf, limit_context, read_config
from ortolan.modeling.config import AttentionPooling, EmbeddingHead, EncoderConfig
from ortolan.modeling.errors import CheckpointError, ConfigError

TEXTS = ragged(9, 1, 16, 4)

END = 60


def with_ends(texts: Ragged, end: int) -> Tensor:
    """The texts with an end token in each, twice in the longest one."""
    ids = texts.ids.clone()
    ids[ids == end] = end - 1
    for row, slot in ((0, 8), (1, 0), (2, 5), (2, 9), (3, 3)):
        ids[row, slot] = end
    return ids


def clip(eos_token_id: int) -> dict[str, Any]:
    values = copy.deepcopy(CLIP)
    values["text_config"] |= {"eos_token_id": eos_token_id, "pad_token_id": 1}
    return values


def contrast_of(checkpoint: Checkpoint) -> Contrast:
    kind = kind_of(checkpoint.values)
    assert kind is not None
    return read_contrast(kind, checkpoint.tensors)


def texts_of(checkpoint: Checkpoint) -> EncoderModel:
    assert checkpoint.texts is not None
    return load(checkpoint.texts, EncoderModel)


@pytest.mark.parametrize("eos_token_id", [2, END], ids=["highest", "own"])
def test_clip_pools_the_first_end_of_a_text(eos_token_id: int, tmp_path: Path) -> None:
    values = clip(eos_token_id)
    reference = EncoderCase("CLIPModel", values).write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    ids, pixels = with_ends(TEXTS, END), random_images(values)
    with torch.inference_mode():
        expected = reference(input_ids=ids, attention_mask=TEXTS.mask, pixel_values=pixels)
        images_NW = load(checkpoint, EncoderModel)(pixels)
        texts_LW = texts_of(checkpoint)(ids, TEXTS.lengths)
    assert_same_logits(images_NW, expected.image_embeds)
    assert_same_logits(texts_LW, expected.text_embeds)
    contrast = contrast_of(checkpoint)
    assert (contrast.scores, contrast.bias) == ("softmax", 0)
    logits_NL = images_NW @ texts_LW.T * contrast.scale
    torch.testing.assert_close(logits_NL, expected.logits_per_image, rtol=1e-4, atol=1e-5)


def test_padding_never_ends_a_text(tmp_path: Path) -> None:
    EncoderCase("CLIPModel", clip(END)).write(tmp_path)
    encoder = texts_of(open_checkpoint(tmp_path))
    ids = with_ends(TEXTS, END)
    ids[1, 0] = END - 1  # a text without an end, before padding that looks like one
    ids[1, 1:] = END
    with torch.inference_mode():
        assert_same_logits(encoder(ids, TEXTS.lengths)[1:2], encoder(ids[1:2, :1]))


def test_siglip_pools_images_by_attention_and_texts_at_their_last_position(tmp_path: Path) -> None:
    reference = EncoderCase("SiglipModel", SIGLIP).write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    texts = texts_of(checkpoint)
    length = texts.config.context_length
    ids = torch.cat((TEXTS.ids, torch.full((4, length - 16), 1)), 1)
    pixels = random_images(SIGLIP)
    with torch.inference_mode():
        expected = reference(input_ids=ids, pixel_values=pixels)
        images_NW, texts_LW = load(checkpoint, EncoderModel)(pixels), texts(ids)
    assert_same_logits(images_NW, expected.image_embeds)
    assert_same_logits(texts_LW, expected.text_embeds)
    contrast = contrast_of(checkpoint)
    assert contrast.scores == "sigmoid"
    assert contrast.bias == pytest.approx(reference.state_dict()["logit_bias"].item())
    logits_NL = images_NW @ texts_LW.T * contrast.scale + contrast.bias
    torch.testing.assert_close(logits_NL, expected.logits_per_image, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("CLIPTextModel", CLIP_TEXT),
        ("CLIPTextModelWithProjection", CLIP_TEXT),
        ("SiglipTextModel", SIGLIP_TEXT),
        ("SiglipVisionModel", SIGLIP_VISION),
    ],
)
def test_a_tower_on_its_own_returns_its_pooled_state(
    architecture: str, values: dict[str, Any], tmp_path: Path
) -> None:
    reference = EncoderCase(architecture, values).write(tmp_path)
    inputs = random_images(values) if "image_size" in values else TEXTS.ids
    name = "pixel_values" if "image_size" in values else "input_ids"
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(inputs)
    assert_same_logits(ours, pooled_output(reference, **{name: inputs}))


def test_a_tower_without_its_pooling_returns_states(tmp_path: Path) -> None:
    values = SIGLIP_VISION | {"vision_use_head": False}
    reference = EncoderCase("SiglipVisionModel", values).write(tmp_path)
    pixels = random_images(values)
    with torch.inference_mode():
        expected = reference(pixel_values=pixels).last_hidden_state
        assert_same_logits(load(tmp_path, EncoderModel)(pixels), expected)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_sizes_that_a_config_leaves_out_are_the_defaults_of_transformers(kind: str) -> None:
    import transformers

    architecture = {"clip": "CLIP", "siglip": "Siglip"}[kind]
    theirs = getattr(transformers, f"{architecture}Config")()
    values: dict[str, Any] = {
        "model_type": kind,
        "architectures": [f"{architecture}Model"],
        "vision_config": {"model_type": f"{kind}_vision_model"},
        "text_config": {"model_type": f"{kind}_text_model"},
    }
    images = config_from_hf(values, EncoderConfig)
    texts = config_from_hf(values | {"model_type": f"{kind}_text_model"}, EncoderConfig)
    for config, expected in ((images, theirs.vision_config), (texts, theirs.text_config)):
        block = config.blocks[0]
        assert len(config.blocks) == expected.num_hidden_layers
        assert config.hidden_size == expected.hidden_size
        assert block.attention.num_heads == expected.num_attention_heads
        assert block.dense.intermediate_size == expected.intermediate_size
        assert block.norm.eps == expected.layer_norm_eps
    assert texts.context_length == theirs.text_config.max_position_embeddings
    assert texts.pad_token_id == theirs.text_config.pad_token_id
    head = texts.head
    assert isinstance(head, EmbeddingHead)
    assert head.end == (theirs.text_config.eos_token_id if kind == "clip" else None)


def test_old_configs_repeat_an_encoder_and_transformers_reads_the_repetition() -> None:
    values = clip(2) | {"text_config_dict": {"hidden_size": 64, "num_hidden_layers": 3}}
    values["model_type"] = "clip_text_model"
    config = config_from_hf(values, EncoderConfig)
    assert (config.hidden_size, len(config.blocks)) == (64, 3)
    assert isinstance(config.head, EmbeddingHead)
    assert config.head.end == 49_407  # not that of text_config


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("logit_scale", None, "expected a tensor with one number, got none"),
        ("logit_scale", torch.zeros(2), "got one of shape"),
        ("logit_scale", torch.tensor(math.nan), "must be finite"),
        ("logit_scale", torch.tensor(20.0), "at most 10000"),
        ("logit_bias", None, "logit_bias: expected a tensor with one number"),
    ],
)
def test_a_comparison_without_sense_is_refused(
    name: str, value: Tensor | None, words: str, tmp_path: Path
) -> None:
    EncoderCase("SiglipModel", SIGLIP).write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    if value is not None:
        tensors[name] = value
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=words):
        contrast_of(open_checkpoint(tmp_path))


def test_a_classifier_has_no_texts(tmp_path: Path) -> None:
    EncoderCase("SiglipForImageClassification", SIGLIP).write(tmp_path)
    assert open_checkpoint(tmp_path).texts is None


def test_padded_texts_have_one_length(tmp_path: Path) -> None:
    EncoderCase("SiglipTextModel", SIGLIP_TEXT).write(tmp_path)
    config = read_config(tmp_path, EncoderConfig)
    assert limit_context(config, config.context_length) == config
    with pytest.raises(ConfigError, match="max_context must be 96"):
        limit_context(config, 40)


def test_only_a_text_has_an_end(tmp_path: Path) -> None:
    EncoderCase("SiglipVisionModel", SIGLIP_VISION).write(tmp_path)
    config = read_config(tmp_path, EncoderConfig)
    assert isinstance(config.head, EmbeddingHead)
    assert isinstance(config.head.pooling, AttentionPooling)
    with pytest.raises(ConfigError, match="end token"):
        replace(config, head=replace(config.head, end=3))

"""Encoders, and pairs of them for images and texts (CLIP, SigLIP), against transformers."""

import copy
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import edit
from tests.modeling.tiny_encoders import (
    ENCODERS,
    IMAGES,
    EncoderCase,
    Ragged,
    pooled_output,
    ragged,
    random_images,
    reference_output,
)
from tests.modeling.tiny_models import assert_same_logits
from tests.refusals import refusal
from tests.tiny.encoders import CLIP, CLIP_TEXT, CLIP_VISION, SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.modeling import EncoderModel, load, save
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.contrast import Contrast, kind_of, read_contrast
from ortolan.modeling.checkpoint.folder import config_from_hf, read_config
from ortolan.modeling.config import (
    AttentionPooling,
    ClassifierHead,
    EmbeddingHead,
    EncoderConfig,
    PatchInput,
)
from ortolan.modeling.families import family_of

TEXTS = ragged(9, 1, 16, 4)

CASES = ENCODERS | IMAGES


def assert_same_outputs(module: EncoderModel, reference: PreTrainedModel) -> None:
    """Raise AssertionError unless both agree wherever there is no padding."""
    if isinstance(module.config.input, PatchInput):
        inputs = [random_images(reference.config.to_dict())]
        expected = reference_output(reference, pixel_values=inputs[0])
    else:
        inputs = [TEXTS.ids, TEXTS.lengths]
        expected = reference_output(reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask)
    with torch.inference_mode():
        ours = module(*inputs)
    if ours.shape[:2] == TEXTS.ids.shape:
        ours, expected = (x[TEXTS.mask.bool()] for x in (ours, expected))
    assert_same_logits(ours, expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"


KIN = ("-classifier", "-tokens", "-answers")
"""Heads, which most families share."""

OWN_HEADS = ("bert-", "roberta-", "distilbert-", "modernbert-", "eurobert-", "electra-", "albert-")


def repeats(name: str) -> bool:
    """Whether a case repeats the head of another family."""
    return name in ENCODERS and name.endswith(KIN) and not name.startswith(OWN_HEADS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * repeats(name)) for name in CASES]
)
def test_a_checkpoint_of_transformers_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference = CASES[name].write(tmp_path)
    assert_same_outputs(load(tmp_path, EncoderModel), reference)


SAVED = [name for name in CASES if family_of(CASES[name].values["model_type"]).hf_config]
"""Models of families that can be saved."""


@pytest.mark.parametrize("name", SAVED)
def test_transformers_reads_what_we_write(name: str, tmp_path: Path) -> None:
    CASES[name].write(tmp_path / "source")
    module = load(tmp_path / "source", EncoderModel)
    save(module, tmp_path / "saved")
    assert load(tmp_path / "saved", EncoderModel).config == module.config
    if name != "bert-pretraining":  # saved without what is not served
        theirs = CASES[name].read(tmp_path / "saved")
        assert_same_outputs(module, theirs)
        if isinstance(module.config.head, ClassifierHead) and "id2label" in CASES[name].values:
            labels: Any = theirs.config.id2label
            assert tuple(labels.values()) == module.config.head.labels


def test_types_of_tokens_are_added(tmp_path: Path) -> None:
    reference = ENCODERS["bert-masked"].write(tmp_path)
    types = (torch.arange(16) > 6).long().expand(4, -1)
    expected = reference_output(
        reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask, token_type_ids=types
    )
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(TEXTS.ids, TEXTS.lengths, types)
    inside = TEXTS.mask.bool()
    assert_same_logits(ours[inside], expected[inside])


def test_the_names_of_the_first_berts_are_understood(tmp_path: Path) -> None:
    reference = ENCODERS["bert-pretraining"].write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert len(set(renamed) - set(tensors)) == 12
    renamed["bert.embeddings.position_ids"] = torch.arange(40)[None]
    renamed["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same_outputs(load(tmp_path, EncoderModel), reference)


# --- images and texts -----------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", ["clip, the highest id ends", "clip, its own id ends", "siglip"])
def test_both_encoders_compare_as_in_transformers(name: str, tmp_path: Path) -> None:
    """CLIP pools the first end of a text, SigLIP the last position of a padded one."""
    is_clip = name.startswith("clip")
    values = clip(END if "own" in name else 2) if is_clip else SIGLIP
    reference = EncoderCase("CLIPModel" if is_clip else "SiglipModel", values).write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    texts, pixels = texts_of(checkpoint), random_images(values)
    if is_clip:
        ids = with_ends(TEXTS, END)
        given, inputs = {"attention_mask": TEXTS.mask}, [ids, TEXTS.lengths]
    else:
        length = texts.config.context_length
        ids = torch.cat((TEXTS.ids, torch.full((4, length - 16), 1)), 1)
        given, inputs = {}, [ids]
    with torch.inference_mode():
        expected: Any = reference(input_ids=ids, pixel_values=pixels, **given)
        images_NW, texts_LW = load(checkpoint, EncoderModel)(pixels), texts(*inputs)
    assert_same_logits(images_NW, expected.image_embeds)
    assert_same_logits(texts_LW, expected.text_embeds)
    contrast = contrast_of(checkpoint)
    assert contrast.scores == ("softmax" if is_clip else "sigmoid")
    logits_NL = images_NW @ texts_LW.T * contrast.scale + contrast.bias
    torch.testing.assert_close(logits_NL, expected.logits_per_image, rtol=1e-4, atol=1e-5)


def test_padding_never_ends_a_text(tmp_path: Path) -> None:
    EncoderCase("CLIPModel", clip(END)).write(tmp_path)
    encoder = texts_of(open_checkpoint(tmp_path))
    ids = with_ends(TEXTS, END)
    ids[1, 0] = END - 1  # a text without an end, before padding that looks like one
    ids[1, 1:] = END
    with torch.inference_mode():
        assert_same_logits(encoder(ids, TEXTS.lengths)[1:2], encoder(ids[1:2, :1]))


TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip texts": ("CLIPTextModel", CLIP_TEXT),
    "clip texts, projected": ("CLIPTextModelWithProjection", CLIP_TEXT),
    "clip images": ("CLIPVisionModel", CLIP_VISION),
    "siglip texts": ("SiglipTextModel", SIGLIP_TEXT),
    "siglip images": ("SiglipVisionModel", SIGLIP_VISION),
    "siglip images, states": ("SiglipVisionModel", SIGLIP_VISION | {"vision_use_head": False}),
}


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_on_its_own_returns_its_pooled_state(name: str, tmp_path: Path) -> None:
    architecture, values = TOWERS[name]
    reference = EncoderCase(architecture, values).write(tmp_path)
    inputs = random_images(values) if "image_size" in values else TEXTS.ids
    output = reference_output if name.endswith("states") else pooled_output
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(inputs)
    assert_same_logits(ours, output(reference, **{reference.main_input_name: inputs}))


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


SENSELESS: dict[str, tuple[str, Tensor | None]] = {
    "no scale": ("logit_scale", None),
    "two scales": ("logit_scale", torch.zeros(2)),
    "a scale that is no number": ("logit_scale", torch.tensor(math.nan)),
    "a scale too large": ("logit_scale", torch.tensor(20.0)),
    "no bias": ("logit_bias", None),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_comparison_without_sense_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    EncoderCase("SiglipModel", SIGLIP).write(tmp_path)
    tensor, value = SENSELESS[name]
    edit(tmp_path, lambda t: t.pop(tensor) if value is None else t.update({tensor: value}))
    assert refusal(lambda: contrast_of(open_checkpoint(tmp_path)), tmp_path) == snapshot


def test_only_a_text_has_an_end(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    EncoderCase("SiglipVisionModel", SIGLIP_VISION).write(tmp_path)
    config = read_config(tmp_path, EncoderConfig)
    assert open_checkpoint(tmp_path).texts is None
    assert isinstance(config.head, EmbeddingHead)
    assert isinstance(config.head.pooling, AttentionPooling)
    with_end = partial(replace, config.head, end=3)
    assert refusal(lambda: replace(config, head=with_end())) == snapshot

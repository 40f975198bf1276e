"""Encoders against Hugging Face transformers: the same checkpoint, the same outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_encoders import ENCODERS, IMAGES, ragged, random_images, reference_output
from tests.modeling.tiny_models import assert_same_logits
from transformers import PreTrainedModel

from ortolan.modeling import EncoderModel, load, save
from ortolan.modeling.config import ClassifierHead, PatchInput
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

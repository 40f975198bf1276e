"""Encoders against Hugging Face transformers: the same checkpoint, the same outputs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tests.modeling.tiny_encoders import (
    BERT,
    ENCODERS,
    IMAGES,
    EncoderCase,
    ragged,
    random_images,
    reference_output,
)
from tests.modeling.tiny_models import assert_same_logits
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ortolan.modeling import EncoderModel, load, save
from ortolan.modeling.config import EmbeddingHead, LanguageModelHead, Pooling
from ortolan.modeling.families import family_of

TEXTS = ragged(9, 1, 16, 4)


def is_saved(case: EncoderCase) -> bool:
    """Whether a model can be saved in the format of its family."""
    return family_of(case.values["model_type"]).hf_config is not None


def written(case: EncoderCase, folder: Path) -> PreTrainedModel:
    reference = case.reference()
    reference.save_pretrained(folder)
    return reference


def read_by_transformers(case: EncoderCase, folder: Path) -> PreTrainedModel:
    kind = getattr(transformers, case.architecture)
    model: PreTrainedModel = kind.from_pretrained(folder, attn_implementation="eager")
    return model


def assert_same_outputs(module: EncoderModel, reference: PreTrainedModel) -> None:
    """Raise AssertionError unless both agree wherever there is no padding."""
    expected = reference_output(reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask)
    with torch.inference_mode():
        ours = module(TEXTS.ids, TEXTS.lengths)
    if ours.dim() == 3:
        ours, expected = (x[TEXTS.mask.bool()] for x in (ours, expected))
    assert_same_logits(ours, expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_checkpoint_of_transformers_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference = written(ENCODERS[name], tmp_path)
    assert_same_outputs(load(tmp_path, EncoderModel), reference)


@pytest.mark.parametrize("name", IMAGES)
def test_a_vision_checkpoint_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    case = IMAGES[name]
    reference = written(case, tmp_path)
    pixels = random_images(case.values)
    expected = reference_output(reference, pixel_values=pixels)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path, EncoderModel)(pixels), expected)
    assert float(expected.std()) > 0.1


@pytest.mark.parametrize("name", [name for name in ENCODERS if is_saved(ENCODERS[name])])
def test_transformers_reads_what_we_write(name: str, tmp_path: Path) -> None:
    case = ENCODERS[name]
    written(case, tmp_path / "source")
    module = load(tmp_path / "source", EncoderModel)
    save(module, tmp_path / "saved")
    assert load(tmp_path / "saved", EncoderModel).config == module.config
    if name != "bert-pretraining":  # saved without what is not served
        assert_same_outputs(module, read_by_transformers(case, tmp_path / "saved"))


@pytest.mark.parametrize("name", IMAGES)
def test_transformers_reads_the_vision_models_we_write(name: str, tmp_path: Path) -> None:
    case = IMAGES[name]
    written(case, tmp_path / "source")
    module = load(tmp_path / "source", EncoderModel)
    save(module, tmp_path / "saved")
    assert load(tmp_path / "saved", EncoderModel).config == module.config
    pixels = random_images(case.values)
    again = read_by_transformers(case, tmp_path / "saved")
    with torch.inference_mode():
        assert_same_logits(module(pixels), reference_output(again, pixel_values=pixels))


def test_types_of_tokens_are_added(tmp_path: Path) -> None:
    reference = written(ENCODERS["bert-masked"], tmp_path)
    types = (torch.arange(16) > 6).long().expand(4, -1)
    expected = reference_output(
        reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask, token_type_ids=types
    )
    with torch.inference_mode():
        ours = load(tmp_path, EncoderModel)(TEXTS.ids, TEXTS.lengths, types)
    inside = TEXTS.mask.bool()
    assert_same_logits(ours[inside], expected[inside])


@pytest.mark.parametrize("name", ["bert", "roberta-classifier", "distilbert-masked"])
def test_a_ragged_batch_equals_its_rows_alone(name: str, tmp_path: Path) -> None:
    written(ENCODERS[name], tmp_path)
    module = load(tmp_path, EncoderModel)
    with torch.inference_mode():
        together = module(TEXTS.ids, TEXTS.lengths)
        for row, length in enumerate(TEXTS.lengths.tolist()):
            alone = module(TEXTS.ids[row : row + 1, :length])[0]
            ours = together[row] if together.dim() == 2 else together[row, :length]
            assert_same_logits(ours, alone)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("normalised", [True, False])
def test_an_embedding_is_the_published_recipe(
    pooling: str, normalised: bool, tmp_path: Path
) -> None:
    # The recipe of sentence-transformers' model cards, with its mask.
    reference = written(ENCODERS["bert"], tmp_path)
    states = reference_output(reference, input_ids=TEXTS.ids, attention_mask=TEXTS.mask)
    mask = TEXTS.mask.unsqueeze(-1).expand(states.size()).float()
    mean = torch.sum(states * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
    expected = mean if pooling == "mean" else states[:, 0]
    expected = functional.normalize(expected, p=2, dim=1) if normalised else expected
    assert_same_logits(embedded(tmp_path, pooling, normalised), expected)


def embedded(folder: Path, pooling: str, normalised: bool) -> Tensor:
    """The texts through a checkpoint whose head is replaced by one without weights."""
    loaded = load(folder, EncoderModel)
    mode: Pooling = "mean" if pooling == "mean" else "first"
    head = EmbeddingHead(pooling=(mode,), normalised=normalised)
    module = EncoderModel(replace(loaded.config, head=head)).eval()
    module.load_state_dict(loaded.state_dict())
    with torch.inference_mode():
        out: Tensor = module(TEXTS.ids, TEXTS.lengths)
    return out


def test_the_names_of_the_first_berts_are_understood(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reference = written(ENCODERS["bert-pretraining"], tmp_path)
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


def test_labels_keep_their_names_and_order(tmp_path: Path) -> None:
    written(ENCODERS["bert-classifier"], tmp_path / "source")
    module = load(tmp_path / "source", EncoderModel)
    save(module, tmp_path / "saved")
    config = read_by_transformers(ENCODERS["bert-classifier"], tmp_path / "saved").config
    assert config.id2label == {0: "ham", 1: "spam", 2: "eggs"}


def test_the_head_is_that_of_the_architecture(tmp_path: Path) -> None:
    written(EncoderCase(architecture="BertForMaskedLM", values=BERT), tmp_path)
    head = load(tmp_path, EncoderModel).config.head
    assert isinstance(head, LanguageModelHead)
    assert head.tied

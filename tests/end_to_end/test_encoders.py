"""Encoders from a Hugging Face checkpoint to labels, vectors and maps, beside transformers."""

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.export.tiny_models import tokenizer
from tests.modeling.tiny_encoders import (
    BERT,
    DISTILBERT,
    MARIAN,
    ROBERTA,
    THREE_LABELS,
    VIT,
    EncoderCase,
)
from tokenizers import processors

import ortolan
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import EmbeddingHead
from ortolan.runtime.attention_maps import attention_maps

V = 97
"""Ids of the tokenizer."""

TEXTS = ["def main(", "a", "for x in range(10): print(x)", "import os", "x = 1", "return", "def f("]

ONE_LAYER = {"num_hidden_layers": 1}

CASES = {
    "bert": EncoderCase(
        architecture="BertForSequenceClassification",
        values=BERT | THREE_LABELS | {"vocab_size": V} | ONE_LAYER,
    ),
    "sentences": EncoderCase(architecture="BertModel", values=BERT | {"vocab_size": V} | ONE_LAYER),
    "roberta": EncoderCase(
        architecture="RobertaForSequenceClassification",
        # transformers moves positions by this id, wherever it is
        values=ROBERTA | THREE_LABELS | {"vocab_size": V, "pad_token_id": 0} | ONE_LAYER,
    ),
    "distilbert": EncoderCase(
        architecture="DistilBertModel", values=DISTILBERT | {"vocab_size": V, "n_layers": 1}
    ),
    "vit": EncoderCase(
        architecture="ViTForImageClassification", values=VIT | THREE_LABELS | ONE_LAYER
    ),
    "gpt2": EncoderCase(
        architecture="GPT2LMHeadModel",
        values={
            "model_type": "gpt2",
            "vocab_size": V,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "marian": EncoderCase(
        architecture="MarianMTModel",
        values=MARIAN
        | {"vocab_size": V, "decoder_vocab_size": V, "encoder_layers": 1, "decoder_layers": 1},
    ),
}
WITH_MAPS = ("bert", "vit", "marian", "gpt2")

Loaded = tuple[Path, Any]
"""A bundle, and the model of transformers."""


def image_processor() -> Any:
    module = importlib.import_module("transformers.models.vit.image_processing_pil_vit")
    return module.ViTImageProcessorPil(
        size={"height": 8, "width": 8},
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.5, 0.25, 0.2],
        resample=Image.Resampling.BICUBIC,
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """Bundles of `CASES`, each made once."""

    @cache
    def export(name: str) -> Loaded:
        checkpoint = tmp_path_factory.mktemp(name)
        model = CASES[name].reference()
        model.save_pretrained(checkpoint)
        if name == "vit":
            image_processor().save_pretrained(checkpoint)
        else:
            made = tokenizer()
            made.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
            )
            made.save(str(checkpoint / "tokenizer.json"))
        if name == "sentences":
            write_sentence_head(checkpoint, EmbeddingHead(pooling=("mean",), normalised=True), 32)
        out = checkpoint / "bundle"
        options = ortolan.ExportOptions(attention_maps=name in WITH_MAPS)
        ortolan.export(checkpoint, out, options=options)
        eager = getattr(transformers, CASES[name].architecture).from_pretrained(
            checkpoint, attn_implementation="eager"
        )
        return out, eager.eval()

    return export


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([[1, *tokenizer().encode(text).ids, 2]])


def assert_close(got: Any, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta"])
@torch.no_grad()
def test_texts_are_classified_as_by_transformers(
    exported: Callable[[str], Loaded], name: str
) -> None:
    path, reference = exported(name)

    found = ortolan.load(path, ortolan.Encoder, threads=1).classify(TEXTS)

    for text, one in zip(TEXTS, found, strict=True):
        shares = reference(ids_of(text)).logits[0].softmax(-1)
        labels = reference.config.id2label
        assert one.label == labels[int(shares.argmax())]
        assert_close([one.probabilities[labels[index]] for index in range(3)], shares)


@torch.no_grad()
def test_sentences_are_embedded_as_by_mean_pooling(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("sentences")

    vectors = ortolan.load(path, ortolan.Encoder, threads=1).embed(TEXTS)

    for text, vector in zip(TEXTS, vectors, strict=True):
        mean = reference(ids_of(text)).last_hidden_state[0].mean(0)
        assert_close(vector, mean / mean.norm())


@torch.no_grad()
def test_states_are_those_of_transformers(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("distilbert")

    states = ortolan.load(path, ortolan.Encoder, threads=1).states(TEXTS)

    for text, rows in zip(TEXTS, states, strict=True):
        np.testing.assert_allclose(
            rows, reference(ids_of(text)).last_hidden_state[0].numpy(), rtol=1e-4, atol=1e-4
        )


@torch.no_grad()
def test_image_files_are_classified_as_by_transformers(
    exported: Callable[[str], Loaded], tmp_path: Path
) -> None:
    path, reference = exported("vit")
    random = np.random.default_rng(0)
    files = []
    for index, size in enumerate([(8, 8), (31, 17), (5, 40)]):
        files.append(tmp_path / f"{index}.png")
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(files[-1])

    found = ortolan.load(path, ortolan.Encoder, threads=1).classify(files)

    for file, one in zip(files, found, strict=True):
        with Image.open(file) as image:
            pixels = image_processor()(image, return_tensors="pt")["pixel_values"]
        shares = reference(pixels).logits[0].softmax(-1)
        labels = reference.config.id2label
        assert_close([one.probabilities[labels[index]] for index in range(3)], shares)


# --- maps -------------------------------------------------------------------------------------


def assert_same(found: Any, expected: dict[str, torch.Tensor]) -> None:
    assert list(found.maps) == list(expected)
    for name, shares in expected.items():
        assert_close(found.maps[name], shares[0])


@torch.no_grad()
def test_maps_of_a_text_are_those_of_transformers(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("bert")

    found = attention_maps(path, "x = 1", threads=1)

    maps = reference(ids_of("x = 1"), output_attentions=True).attentions
    assert_same(found, {f"encoder.{layer}.self": shares for layer, shares in enumerate(maps)})
    assert len(found.keys["encoder.0.self"]) == maps[0].shape[-1]


@torch.no_grad()
def test_maps_of_a_decoder_are_those_of_transformers(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("gpt2")

    found = attention_maps(path, "x = 1", threads=1)

    maps = reference(ids_of("x = 1"), output_attentions=True).attentions
    assert_same(found, {f"decoder.{layer}.self": shares for layer, shares in enumerate(maps)})
    assert found.queries["decoder.0.self"][0] == "<s>"
    assert np.triu(found.maps["decoder.1.self"], 1).max() == 0


@torch.no_grad()
def test_maps_of_an_image_are_those_of_transformers(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("vit")
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)

    found = attention_maps(path, image, threads=1)

    pixels = image_processor()(Image.fromarray(image), return_tensors="pt")["pixel_values"]
    maps = reference(pixels, output_attentions=True).attentions
    assert_same(found, {f"encoder.{layer}.self": shares for layer, shares in enumerate(maps)})
    assert found.keys["encoder.0.self"][-1] == "16"


@pytest.mark.slow  # the numbers: tests/export/test_families.py
@torch.no_grad()
def test_maps_of_a_translation_name_what_is_read_and_what_is_written(
    exported: Callable[[str], Loaded],
) -> None:
    path, reference = exported("marian")

    found = attention_maps(path, "x = 1", target=[5, 6, 2], threads=1)

    start = reference.config.decoder_start_token_id
    done = reference(
        ids_of("x = 1"),
        decoder_input_ids=torch.tensor([[start, 5, 6]]),
        output_attentions=True,
    )
    for side, kind, maps in (
        ("encoder", "self", done.encoder_attentions),
        ("decoder", "self", done.decoder_attentions),
        ("decoder", "cross", done.cross_attentions),
    ):
        for layer, shares in enumerate(maps):
            assert_close(found.maps[f"{side}.{layer}.{kind}"], shares[0])
    names = tokenizer()
    five, six = names.id_to_token(5), names.id_to_token(6)
    assert found.queries["decoder.0.cross"] == (five, six, "</s>")
    assert found.queries["decoder.0.self"][1:] == (five, six)
    assert found.keys["decoder.0.cross"] == found.keys["encoder.0.self"]


@pytest.mark.slow  # as above
@torch.no_grad()
def test_target_that_is_not_given_is_what_the_model_writes(
    exported: Callable[[str], Loaded],
) -> None:
    path, reference = exported("marian")

    found = attention_maps(path, "x = 1", threads=1)

    written = reference.generate(ids_of("x = 1"), num_beams=1, do_sample=False, max_length=40)
    count = written.shape[1] - 1
    assert found.maps["decoder.0.cross"].shape[1] == count
    maps = reference(
        ids_of("x = 1"), decoder_input_ids=written[:, :-1], output_attentions=True
    ).cross_attentions
    assert_close(found.maps["decoder.0.cross"], maps[0][0])

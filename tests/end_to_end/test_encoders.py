"""Encoders from a Hugging Face checkpoint to labels, vectors and maps, like transformers."""

import importlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.modeling.tiny_encoders import THREE_LABELS, EncoderCase
from tests.tiny.decoders import GPT2
from tests.tiny.encoders import BERT, DISTILBERT, MARIAN, VIT
from tests.tiny.tokenizers import of_characters, with_ends

import ortolan
from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import EmbeddingHead
from ortolan.runtime.attention_maps import attention_maps

V = 97
"""Vocabulary of the tokenizer."""

TEXTS = ["def main(", "a", "for x in range(10): print(x)", "import os", "x = 1", "return", "def f("]

ONE_LAYER = {"num_hidden_layers": 1}

CASES = {
    "bert": EncoderCase(
        "BertForSequenceClassification",
        BERT | THREE_LABELS | {"vocab_size": V} | ONE_LAYER,
    ),
    "sentences": EncoderCase("BertModel", BERT | {"vocab_size": V} | ONE_LAYER),
    "distilbert": EncoderCase("DistilBertModel", DISTILBERT | {"vocab_size": V, "n_layers": 1}),
    "vit": EncoderCase("ViTForImageClassification", VIT | THREE_LABELS | ONE_LAYER),
    "gpt2": EncoderCase(
        "GPT2LMHeadModel",
        GPT2
        | {"vocab_size": V, "n_layer": 1, "n_positions": 40}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "marian": EncoderCase(
        "MarianMTModel",
        MARIAN
        | {"vocab_size": V, "decoder_vocab_size": V, "encoder_layers": 1, "decoder_layers": 1},
    ),
}
WITH_MAPS = ("bert", "marian", "gpt2")

Loaded = tuple[Path, Any]
"""A bundle and its reference in transformers."""


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
    """Export a case, once."""

    @cache
    def export(name: str) -> Loaded:
        checkpoint = tmp_path_factory.mktemp(name)
        CASES[name].reference().save_pretrained(checkpoint)
        if name == "vit":
            image_processor().save_pretrained(checkpoint)
        else:
            tokenizer = with_ends(of_characters(), "<s> $A </s>")
            tokenizer.save(str(checkpoint / "tokenizer.json"))
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


@pytest.fixture(autouse=True)
def no_grad() -> Iterable[None]:
    with torch.no_grad():
        yield


def encoder(path: Path) -> ortolan.Encoder:
    return ortolan.load(path, ortolan.Encoder, threads=1)


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([[1, *of_characters().encode(text).ids, 2]])


def pixels_of(image: Image.Image) -> torch.Tensor:
    pixels: torch.Tensor = image_processor()(image, return_tensors="pt")["pixel_values"]
    return pixels


def assert_close(got: Any, expected: torch.Tensor, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=atol)


def assert_classified(path: Path, reference: Any, inputs: list[Any], tensors: list[Any]) -> None:
    labels = reference.config.id2label
    for result, tensor in zip(encoder(path).classify(inputs), tensors, strict=True):
        probabilities = reference(tensor).logits[0].softmax(-1)
        assert result.label == labels[int(probabilities.argmax())]
        assert_close([result.probabilities[labels[index]] for index in range(3)], probabilities)


def test_texts_are_classified(exported: Callable[[str], Loaded]) -> None:
    assert_classified(*exported("bert"), TEXTS, [ids_of(text) for text in TEXTS])


def test_image_files_are_classified(exported: Callable[[str], Loaded], tmp_path: Path) -> None:
    random, files, tensors = np.random.default_rng(0), [], []
    for index, size in enumerate([(8, 8), (31, 17), (5, 40)]):
        files.append(tmp_path / f"{index}.png")
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(files[-1])
        with Image.open(files[-1]) as image:
            tensors.append(pixels_of(image))
    assert_classified(*exported("vit"), files, tensors)


def test_sentences_are_embedded_by_mean_pooling(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("sentences")
    for text, vector in zip(TEXTS, encoder(path).embed(TEXTS), strict=True):
        mean = reference(ids_of(text)).last_hidden_state[0].mean(0)
        assert_close(vector, mean / mean.norm())


def test_states_equal_those_of_transformers(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("distilbert")
    for text, rows in zip(TEXTS, encoder(path).states(TEXTS), strict=True):
        assert_close(rows, reference(ids_of(text)).last_hidden_state[0], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "side"), [("bert", "encoder"), pytest.param("gpt2", "decoder", marks=pytest.mark.slow)]
)
def test_maps_of_a_text_equal_those_of_transformers(
    exported: Callable[[str], Loaded], name: str, side: str
) -> None:
    path, reference = exported(name)
    maps = attention_maps(path, "x = 1", threads=1)
    expected = reference(ids_of("x = 1"), output_attentions=True).attentions
    assert list(maps.maps) == [f"{side}.{layer}.self" for layer in range(len(expected))]
    for got, shares in zip(maps.maps.values(), expected, strict=True):
        assert_close(got, shares[0])
    assert len(maps.keys[f"{side}.0.self"]) == expected[0].shape[-1]
    assert maps.queries[f"{side}.0.self"][0] == "<s>"
    if side == "decoder":
        assert np.triu(maps.maps["decoder.0.self"], 1).max() == 0


@pytest.mark.slow  # the numbers: tests/export/test_families.py
def test_maps_of_a_translation_name_source_and_target(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("marian")
    maps = attention_maps(path, "x = 1", target=[5, 6, 2], threads=1)
    start = reference.config.decoder_start_token_id
    target = torch.tensor([[start, 5, 6]])
    outputs = reference(ids_of("x = 1"), decoder_input_ids=target, output_attentions=True)
    for name, expected in (
        ("encoder.{}.self", outputs.encoder_attentions),
        ("decoder.{}.self", outputs.decoder_attentions),
        ("decoder.{}.cross", outputs.cross_attentions),
    ):
        for layer, shares in enumerate(expected):
            assert_close(maps.maps[name.format(layer)], shares[0])
    five, six = map(of_characters().id_to_token, (5, 6))
    assert maps.queries["decoder.0.cross"] == (five, six, "</s>")
    assert maps.queries["decoder.0.self"][1:] == (five, six)
    assert maps.keys["decoder.0.cross"] == maps.keys["encoder.0.self"]


@pytest.mark.slow  # as above
def test_the_default_target_is_what_the_model_generates(exported: Callable[[str], Loaded]) -> None:
    path, reference = exported("marian")
    cross = attention_maps(path, "x = 1", threads=1).maps["decoder.0.cross"]
    target = reference.generate(ids_of("x = 1"), num_beams=1, do_sample=False, max_length=96)
    assert cross.shape[1] == target.shape[1] - 1
    outputs = reference(ids_of("x = 1"), decoder_input_ids=target[:, :-1], output_attentions=True)
    assert_close(cross, outputs.cross_attentions[0][0])

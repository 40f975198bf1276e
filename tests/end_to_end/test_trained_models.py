"""Bundles of the trained models in models/ are as accurate as their cards say."""

import sys
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch
from sacrebleu import corpus_bleu

import copying.data
import digits.data
import numerals.data
import ortolan
import sorting.data
from ortolan.modeling import TransformerModel, load
from ortolan.modeling.training.data import LabelledTexts, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.runtime import Decoder, Encoder, Seq2Seq

MODELS = Path(__file__).parents[2] / "models"

Precision = Literal["fp32", "int8"]

PRECISIONS = ("fp32", pytest.param("int8", marks=pytest.mark.slow))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_digits_are_named(precision: Precision, tmp_path: Path) -> None:
    held_out = digits.data.read().held_out
    ortolan.export(MODELS / "digits", tmp_path / "bundle", precision=precision)
    results = ortolan.load(tmp_path / "bundle", Encoder).classify(list(held_out.pixels))
    right = np.array([int(result.label) for result in results]) == held_out.labels
    assert len(right) == 449
    assert right.mean() >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_sentences_with_unseen_numbers_are_translated(precision: Precision, tmp_path: Path) -> None:
    held_out = numerals.data.read(pairs=1, held_out=100).held_out["numbers"]
    ortolan.export(MODELS / "numerals", tmp_path / "bundle", precision=precision)
    model = ortolan.load(tmp_path / "bundle", Seq2Seq)
    texts = [completion.text for completion in model.generate([source for source, _ in held_out])]
    assert corpus_bleu(texts, [[target for _, target in held_out]]).score >= 95


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="other standard libraries contain files of the training data",
)
def test_snippets_are_named_by_their_package(tmp_path: Path) -> None:
    recipe = read_recipe(MODELS / "snippets" / "recipe.toml")
    held_out = read_data(recipe, MODELS / "snippets", LabelledTexts).held_out[::4]
    ortolan.export(MODELS / "snippets", tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", Encoder)
    labels = model.manifest.output.labels if model.manifest.output else ()
    results = model.classify([text for text, _ in held_out], truncate=True)
    right = [r.label == labels[label] for r, (_, label) in zip(results, held_out, strict=True)]
    card = msgspec.json.decode((MODELS / "snippets" / "training.json").read_bytes())
    # three standard deviations of a sample of this size
    leeway = 3 * (0.25 / len(right)) ** 0.5
    assert np.mean(right) == pytest.approx(card["held_out_accuracy"], abs=leeway)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attentive-rnn", "ntm", "transformer"])
@pytest.mark.parametrize("task", ["copying", "sorting"])
def test_prompts_are_answered_as_in_pytorch(task: str, kind: str, tmp_path: Path) -> None:
    folder = MODELS / task / kind
    ortolan.export(folder, tmp_path / "bundle")
    bundle, model = ortolan.load(tmp_path / "bundle", Decoder), load(folder, TransformerModel)
    read = {"copying": copying.data.read, "sorting": sorting.data.read}[task]
    for pairs in read(texts=1, held_out=8).held_out.values():
        completions = bundle.generate([prompt for prompt, _ in pairs])
        for (prompt, answer), completion in zip(pairs, completions, strict=True):
            ids = bundle.tokenizer.encode(f"{prompt} {answer}") if bundle.tokenizer else []
            answered = [*ids[-len(answer.split()) :], *bundle.manifest.tokens.eos]
            with torch.inference_mode():
                likeliest = model(torch.tensor([ids]))[0, -len(answered) :].argmax(-1)
            assert (likeliest.tolist() == answered) == (completion.text == answer), prompt

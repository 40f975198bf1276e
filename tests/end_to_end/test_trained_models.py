"""Bundles of the trained models in models/ are as accurate as their cards say, and as PyTorch."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from PIL import Image
from sacrebleu import corpus_bleu

import copying.data
import digits.data
import numerals.data
import ortolan
import shapes.quality
import sorting.data
import spoken.quality
from ortolan.modeling import TransformerModel, load
from ortolan.modeling.training.data import LabelledTexts, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.runtime import Decoder, Encoder, Seq2Seq
from shapes.scenes import kind_of

MODELS = Path(__file__).parents[2] / "models"

PRECISIONS = ["fp32", "int8", "int4"]

Exported = Callable[..., Path]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Export a model, once."""

    @cache
    def export(name: str, precision: Any = "fp32") -> Path:
        out = tmp_path_factory.mktemp("trained") / "bundle"
        ortolan.export(MODELS / name, out, precision=precision)
        return out

    return export


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=pytest.mark.slow)])
def test_digits_are_named(precision: str, exported: Exported) -> None:
    held_out = digits.data.read().held_out
    results = ortolan.load(exported("digits", precision), Encoder).classify(list(held_out.pixels))
    right = np.array([int(result.label) for result in results]) == held_out.labels
    assert len(right) == 449
    assert right.mean() >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_sentences_with_unseen_numbers_are_translated(precision: str, exported: Exported) -> None:
    held_out = numerals.data.read(pairs=1, held_out=100).held_out["numbers"]
    model = ortolan.load(exported("numerals", precision), Seq2Seq)
    texts = [completion.text for completion in model.generate([source for source, _ in held_out])]
    assert corpus_bleu(texts, [[target for _, target in held_out]]).score >= 95


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="other standard libraries contain files of the training data",
)
def test_snippets_are_named_by_their_package(exported: Exported) -> None:
    recipe = read_recipe(MODELS / "snippets" / "recipe.toml")
    held_out = read_data(recipe, MODELS / "snippets", LabelledTexts).held_out[::4]
    model = ortolan.load(exported("snippets"), Encoder)
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
def test_prompts_are_answered_as_in_pytorch(task: str, kind: str, exported: Exported) -> None:
    folder = f"{task}/{kind}"
    bundle = ortolan.load(exported(folder), Decoder)
    model = load(MODELS / folder, TransformerModel)
    read = {"copying": copying.data.read, "sorting": sorting.data.read}[task]
    for pairs in read(texts=1, held_out=8).held_out.values():
        completions = bundle.generate([prompt for prompt, _ in pairs])
        for (prompt, answer), completion in zip(pairs, completions, strict=True):
            ids = bundle.tokenizer.encode(f"{prompt} {answer}") if bundle.tokenizer else []
            answered = [*ids[-len(answer.split()) :], *bundle.manifest.tokens.eos]
            with torch.inference_mode():
                likeliest = model(torch.tensor([ids]))[0, -len(answered) :].argmax(-1)
            assert (likeliest.tolist() == answered) == (completion.text == answer), prompt


# --- pictures -----------------------------------------------------------------------------------

SCENE = "a red circle, a blue square, a yellow triangle, a black cross, a purple circle"


@pytest.mark.slow
def test_a_picture_is_described(exported: Exported) -> None:
    model = ortolan.load(exported("shapes"), Decoder)
    file = MODELS / "shapes" / "scene.png"
    pixels = np.asarray(Image.open(file).convert("RGB"))
    for image in (file, file.read_bytes(), pixels):
        assert model.generate([{"image": image}, "What do you see?"]).text.strip() == SCENE
    drawn = shapes.quality.asked("known", 40)
    expected = shapes.quality.by_pytorch(MODELS / "shapes")(drawn)
    assert shapes.quality.by_bundle(str(exported("shapes")))(drawn) == expected


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_known_scenes_are_described(precision: str, exported: Exported) -> None:
    answer = shapes.quality.by_bundle(str(exported("shapes", precision)))
    drawn = [e for e in shapes.quality.asked("known") if kind_of(e.question) == "What do you see"]
    assert shapes.quality.accuracy(drawn, answer(drawn))["all"] >= 0.9


# --- speech -------------------------------------------------------------------------------------

TALK = MODELS / "spoken" / "talk.flac"

SAID = {
    (0.60, 2.28): "nine green cows jump on the hill",
    (3.00, 4.71): "five yellow frogs jump in the garden",
    (5.05, 6.78): "one black horse runs on the hill",
    (6.88, 8.45): "nine red cows jump here",
    (9.18, 11.10): "two blue birds run under the tree",
    (11.44, 13.00): "eight blue ducks run at home",
}
"""Times and phrases that `python -m spoken.phrases` prints."""


@pytest.fixture(scope="module")
def samples() -> NDArray[np.float32]:
    read: NDArray[np.float32] = soundfile.read(TALK, dtype="float32")[0]
    return read


def word_errors(text: str) -> int:
    return spoken.quality.word_errors(" ".join(SAID.values()).split(), text.split())


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_talk_is_written_down_with_its_times(precision: str, exported: Exported) -> None:
    heard = ortolan.load(exported("spoken", precision), Seq2Seq).transcribe(TALK)
    assert word_errors(heard.text) <= 2
    if precision == "fp32":
        assert [segment.text for segment in heard.segments] == list(SAID.values())
        for segment, (start, end) in zip(heard.segments, SAID, strict=True):
            assert segment.start == pytest.approx(start, abs=0.1)
            assert segment.end == pytest.approx(end, abs=0.1)


@pytest.mark.slow
def test_the_text_is_that_of_pytorch_and_heard_while_it_is_spoken(
    exported: Exported, samples: NDArray[np.float32]
) -> None:
    sounds = [samples, samples[16_000:], samples[:100_000]]
    expected = spoken.quality.by_pytorch(MODELS / "spoken")(sounds)
    heard = spoken.quality.by_bundle(str(exported("spoken")))(sounds)
    assert [[own.text for own in one] for one in heard] == [
        [own.text for own in one] for one in expected
    ]
    model = ortolan.load(exported("spoken"), Seq2Seq)
    listened = [own.text for own in model.listen(np.array_split(samples, 50)) if own.text]
    assert word_errors(" ".join(listened)) <= 2

"""Zero-shot classification by entailment, compared with the pipeline of transformers."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.cli.conftest import run_here
from tests.modeling.tiny_encoders import EncoderCase
from tests.tiny.encoders import BERT
from tests.tiny.tokenizers import of_pairs

import ortolan
from ortolan.runtime.errors import BundleKindError

pytestmark = pytest.mark.slow

NAMES = {
    "last": ("contradiction", "neutral", "ENTAILMENT"),
    "first": ("entailment", "neutral", "contradiction"),
    "two": ("entailment", "not_entailment"),
    "other": ("sport", "politics"),
}
TEXTS = ["def main(", "import os", "return x"]
LABELS = ["x", "for", "def f("]


def classifier(names: tuple[str, ...]) -> EncoderCase:
    labels = {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    size = {"num_hidden_layers": 1, "max_position_embeddings": 80}
    return EncoderCase("BertForSequenceClassification", BERT | size | labels)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a case, once, to `bundle` in the checkpoint."""

    @cache
    def export(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        classifier(NAMES[name]).reference().save_pretrained(folder)
        of_pairs().save(str(folder / "tokenizer.json"))
        ortolan.export(folder, folder / "bundle")
        return folder

    return export


def loaded(folder: Path) -> ortolan.Encoder:
    return ortolan.load(folder / "bundle", ortolan.Encoder, threads=1)


@pytest.mark.parametrize("labels", [LABELS, ["x"]], ids=["three", "one"])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    "name", ["last", *(pytest.param(name, marks=pytest.mark.slow) for name in ("first", "two"))]
)
def test_scores_are_those_of_transformers(
    name: str, multi_label: bool, labels: list[str], checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(name)
    fast: Any = transformers.PreTrainedTokenizerFast
    library = fast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="<s>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    auto: Any = transformers.AutoModelForSequenceClassification
    zero_shot: Any = transformers.ZeroShotClassificationPipeline
    pipeline = zero_shot(model=auto.from_pretrained(folder).eval(), tokenizer=library)
    results = loaded(folder).classify_as(TEXTS, labels, multi_label=multi_label)
    for text, result in zip(TEXTS, results, strict=True):
        theirs: Any = pipeline(text, candidate_labels=labels, multi_label=multi_label)
        expected = dict(zip(theirs["labels"], theirs["scores"], strict=True))
        assert result.probabilities == pytest.approx(expected, abs=1e-4)
        assert result.probability == pytest.approx(theirs["scores"][0], abs=1e-4)


def test_a_template_takes_the_label_as_it_is(checkpoint: Callable[[str], Path]) -> None:
    model = loaded(checkpoint("last"))
    template = "It is {}!"
    (own,) = model.classify_as("def main(", ["{0}", "x"], multi_label=True, template=template)
    (pair,) = model.classify([("def main(", "It is {0}!")])
    yes, no = pair.probabilities["ENTAILMENT"], pair.probabilities["contradiction"]
    assert own.probabilities["{0}"] == pytest.approx(yes / (yes + no), abs=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": []}, "labels must be a list"),
        ({"labels": "sport"}, "labels must be a list"),
        ({"labels": ["a", " "]}, "non-empty"),
        ({"labels": ["a", 1]}, "non-empty"),
        ({"labels": ["a", "a"]}, "unique"),
        ({"template": "It is."}, "template"),
        ({"template": 3}, "template"),
        ({"inputs": [[1, 2]]}, "needs texts"),
    ],
)
def test_bad_arguments_are_refused(
    given: dict[str, Any], words: str, checkpoint: Callable[[str], Path]
) -> None:
    arguments: dict[str, Any] = {"inputs": "def main(", "labels": ["a"]} | given
    with pytest.raises(ortolan.InputError, match=words):
        loaded(checkpoint("last")).classify_as(**arguments)


def test_nothing_is_computed_without_texts(checkpoint: Callable[[str], Path]) -> None:
    assert loaded(checkpoint("last")).classify_as([], ["a", "b"]) == []


@pytest.mark.slow
def test_other_labels_say_nothing_of_entailment(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(BundleKindError, match="entailment"):
        loaded(checkpoint("other")).classify_as("def main(", ["a"])


def test_the_command_prints_every_label(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("last")
    words = ("classify", folder / "bundle", "def main(", "--labels", "x, for")
    (row,) = json.loads(run_here(*words, "--json").stdout)["results"]
    (expected,) = loaded(folder).classify_as("def main(", ["x", "for"])
    assert row["probabilities"] == pytest.approx(expected.probabilities)
    lines = run_here(*words, "--multi-label").stdout.decode().splitlines()
    assert sorted(line.split()[0] for line in lines) == ["for", "x"]
    (row,) = json.loads(run_here(*words, "--template", "It is {}.", "--json").stdout)["results"]
    (other,) = loaded(folder).classify_as("def main(", ["x", "for"], template="It is {}.")
    assert row["probabilities"] == pytest.approx(other.probabilities)
    refused = run_here("classify", folder / "bundle", "def main(", "--multi-label")
    assert (refused.returncode, b"--labels" in refused.stderr) == (2, True)

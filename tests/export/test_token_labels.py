"""Entities of token classifier bundles against the pipeline of transformers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.runtime.tiny_tokenizers import KINDS
from tests.tiny.encoders import BERT
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

import ortolan
from ortolan.cli.classify import command
from ortolan.export.options import ExportOptions
from ortolan.runtime import BundleKindError, ContextLengthError, Encoder, InputError, load
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = [
    "the quick brown fox jumps over it",
    "déjà vu 👩‍👧 in Łódź, naïve",
    "(Größe) it's\nhere",
]
POOR = ExportOptions(allow_poor=True)
STRATEGIES = ("none", "simple", "first", "average", "max")


def save(folder: Path, kind: str, *, outside: float = 0.0) -> None:
    """Save a random token classifier with a trained tokenizer; `outside` favors the label O."""
    torch.manual_seed(0)
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    values = BERT | {"max_position_embeddings": 128, "id2label": dict(enumerate(LABELS))}
    values |= {"vocab_size": tokenizer.get_vocab_size() + 3, "pad_token_id": 0}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    auto: Any = AutoModelForTokenClassification
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        model.classifier.bias[0] += outside
    model.save_pretrained(folder)
    fast: Any = PreTrainedTokenizerFast
    unknown = getattr(tokenizer.model, "unk_token", None)
    named = {"unk_token": unknown} if unknown else {}
    fast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **named
    ).save_pretrained(folder)


@pytest.fixture(scope="module", params=["wordpiece", "byte_level", "metaspace", "sentencepiece"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    save(folder / "source", request.param)
    ortolan.export(folder / "source", folder / "bundle")
    return folder


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities_are_those_of_the_pipeline(folders: Path, strategy: Any) -> None:
    model = load(folders / "bundle", Encoder)
    reference: Any = pipeline(
        "token-classification",
        model=str(folders / "source"),
        aggregation_strategy=strategy,
    )

    results = model.classify_tokens(TEXTS, aggregation=strategy)

    for text, result in zip(TEXTS, results, strict=True):
        expected = reference(text)
        found = [(entity.label, entity.start, entity.end) for entity in result.entities]
        key = "entity" if strategy == "none" else "entity_group"
        assert found == [(each[key], each["start"], each["end"]) for each in expected]
        for entity, each in zip(result.entities, expected, strict=True):
            assert entity.text == text[entity.start : entity.end]
            assert entity.score == pytest.approx(each["score"], abs=1e-5)
    assert any(result.entities for result in results)


def test_the_certificate_covers_the_labels(folders: Path) -> None:
    report = verify(folders / "bundle", exact=False, isolate=False)

    assert report.verdict == "PASS"
    assert report.output == "token_labels"
    assert report.mean_kl is not None
    assert report.surroundings is not None
    assert report.surroundings.scores > 1


def test_wrong_inputs_are_rejected(folders: Path) -> None:
    model = load(folders / "bundle", Encoder)
    wrong: Any = "mean"
    with pytest.raises(InputError, match="aggregation must be one of"):
        model.classify_tokens("a", aggregation=wrong)
    with pytest.raises(InputError, match="need a text"):
        model.classify_tokens([[5, 6]])
    with pytest.raises(ContextLengthError):
        model.classify_tokens("fox " * 400)
    with pytest.raises(BundleKindError, match="classify_tokens"):
        model.classify("a")
    assert model.classify_tokens("fox " * 400, truncate=True)[0].tokens[-1].end <= 128 * 4


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_bit_weights_label_tokens(folders: Path, tmp_path: Path, precision: Any) -> None:
    ortolan.export(folders / "source", tmp_path / "bundle", precision=precision, options=POOR)
    assert load(tmp_path / "bundle", Encoder).classify_tokens(TEXTS[0])[0].tokens


def test_the_command_prints_entities(folders: Path) -> None:
    entities = load(folders / "bundle", Encoder).classify_tokens(TEXTS[0])[0].entities

    done = CliRunner().invoke(command, [str(folders / "bundle"), TEXTS[0], "--json"])

    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["results"]
    assert row["entities"] == [asdict(entity) for entity in entities]
    plain = CliRunner().invoke(command, [str(folders / "bundle"), TEXTS[0]])
    assert plain.exit_code == 0, plain.output
    assert all(entity.text.rstrip() in plain.stdout for entity in entities)


def test_the_command_prints_nothing_for_a_text_without_entities(tmp_path: Path) -> None:
    save(tmp_path / "source", "wordpiece", outside=1e3)
    ortolan.export(tmp_path / "source", tmp_path / "bundle")
    done = CliRunner().invoke(command, [str(tmp_path / "bundle"), TEXTS[0]])
    assert (done.exit_code, done.stdout) == (0, "")

"""What a published classifier says of its labels, read as transformers reads it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.modeling.tiny_encoders import ENCODERS, IMAGES, EncoderCase
from tests.tiny.encoders import BERT
from transformers import BertConfig

from ortolan.modeling.checkpoint.folder import config_from_hf, read_config
from ortolan.modeling.config import ClassifierHead, EncoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import published_config
from ortolan.modeling.families.classifier import (
    read_classifier,
    read_span_head,
    read_token_classifier,
)
from ortolan.modeling.families.reader import ConfigReader

SINGLE, MULTI, REGRESSION = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)
IDENTITY, SIGMOID = (f"torch.nn.modules.{name}" for name in ("linear.Identity", "Sigmoid"))

CLASSIFIERS = {
    name: case
    for name, case in {**ENCODERS, **IMAGES}.items()
    if case.architecture.endswith(("SequenceClassification", "ImageClassification"))
}


def head_of(**values: Any) -> ClassifierHead:
    return read_classifier(ConfigReader(values), pooling="first")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"num_labels": 3},
        {"num_labels": 1},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"id2label": {"1": "b", "0": "a"}},
        {"id2label": {"0": "a", "1": "b"}, "num_labels": 3},
        {"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 2},
        {"id2label": {"0": "a", "1": "b"}, "num_labels": 2},
        {"id2label": {"0": 5, "1": 1}},
        {"id2label": None, "num_labels": 4},
        {"label2id": {"a": 0, "b": 1, "c": 2}},
        {"id2label": {f"{i}": f"{i}" for i in reversed(range(12))}},
    ],
)
def test_labels_are_those_of_transformers(values: dict[str, Any]) -> None:
    reference = BertConfig.from_dict({"model_type": "bert", **values})
    named: Any = reference.id2label
    labels = tuple(str(named[i]) for i in range(len(named)))

    assert head_of(**values).labels == labels


@pytest.mark.parametrize(
    ("values", "function"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"problem_type": SINGLE}, "softmax"),
        ({"problem_type": MULTI}, "sigmoid"),
        ({"problem_type": MULTI, "num_labels": 1}, "sigmoid"),
        ({"problem_type": REGRESSION}, "none"),
        ({"problem_type": REGRESSION, "num_labels": 1}, "none"),
        ({"function_to_apply": "softmax"}, "softmax"),
        ({"problem_type": REGRESSION, "function_to_apply": "none"}, "none"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}}, "none"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY}, "none"),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": SIGMOID, "version": "5"}},
            "sigmoid",
        ),
        # it writes Identity for every model of several labels
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": IDENTITY}}, "softmax"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"problem_type": MULTI, "sbert_ce_default_activation_function": IDENTITY}, "sigmoid"),
    ],
)
def test_the_config_decides_what_is_applied_to_the_logits(
    values: dict[str, Any], function: str
) -> None:
    assert head_of(**values).scores == function


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("problem", [MULTI, REGRESSION])
def test_every_family_reads_what_kind_of_problem_it_is(name: str, problem: str) -> None:
    case: EncoderCase = CLASSIFIERS[name]
    published = {**case.values, "architectures": [case.architecture], "problem_type": problem}

    config = config_from_hf(published, EncoderConfig)

    assert isinstance(config.head, ClassifierHead)
    assert config.head.scores == {MULTI: "sigmoid", REGRESSION: "none"}[problem]
    if config.model_type in ("bert", "distilbert", "vit"):
        assert config_from_hf(published_config(config), EncoderConfig).head == config.head


@pytest.mark.parametrize("read", [read_token_classifier, read_span_head])
@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_problem_types_change_nothing_for_tokens(
    read: Callable[[ConfigReader], ClassifierHead], problem: str
) -> None:
    assert read(ConfigReader({"problem_type": problem})) == read(ConfigReader({}))


CROSS_ENCODER: dict[str, Any] = {
    "model_type": "CrossEncoder",
    "prompts": {},
    "default_prompt_name": None,
}


def write_cross_encoder(folder: Path, modules: list[str], **values: Any) -> None:
    EncoderCase(
        "BertForSequenceClassification",
        BERT | {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    ).write(folder)
    entries = [{"type": f"sentence_transformers.base.modules.{kind}"} for kind in modules]
    (folder / "modules.json").write_text(json.dumps(entries))
    kept = CROSS_ENCODER | values
    (folder / "config_sentence_transformers.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(("name", "scores"), [("Identity", "none"), ("Sigmoid", "sigmoid")])
def test_a_cross_encoder_keeps_its_function_next_to_the_config(
    name: str, scores: str, tmp_path: Path
) -> None:
    kind = f"torch.nn.modules.linear.{name}"
    write_cross_encoder(tmp_path, ["transformer.Transformer"], activation_fn=kind)
    head = read_config(tmp_path, EncoderConfig).head
    assert isinstance(head, ClassifierHead)
    assert head.scores == scores


@pytest.mark.parametrize(
    ("modules", "values"),
    [
        (["transformer.Transformer", "dense.Dense"], {}),
        (["transformer.Transformer"], {"default_prompt_name": "q", "prompts": {"q": "query: "}}),
    ],
)
def test_a_cross_encoder_that_does_more_is_rejected(
    modules: list[str], values: dict[str, Any], tmp_path: Path
) -> None:
    write_cross_encoder(tmp_path, modules, **values)
    with pytest.raises(ConfigError, match="a cross-encoder must be a Transformer"):
        read_config(tmp_path, EncoderConfig)

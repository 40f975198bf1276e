"""What a published classifier says of its labels, read as transformers reads it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.modeling.tiny_encoders import ENCODERS, IMAGES
from tests.refusals import refusal
from tests.tiny.encoders import BERT
from transformers import BertConfig

from ortolan.modeling.checkpoint.folder import config_from_hf, read_config
from ortolan.modeling.config import ClassifierHead, EncoderConfig
from ortolan.modeling.families import published_config
from ortolan.modeling.families.classifier import read_classifier
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
def test_every_family_reads_what_kind_of_problem_it_is(name: str) -> None:
    case = CLASSIFIERS[name]
    published = {**case.values, "architectures": [case.architecture], "problem_type": MULTI}
    config = config_from_hf(published, EncoderConfig)
    assert isinstance(config.head, ClassifierHead)
    assert config.head.scores == "sigmoid"
    if config.model_type in ("bert", "vit"):
        assert config_from_hf(published_config(config), EncoderConfig).head == config.head


@pytest.mark.parametrize("task", ["TokenClassification", "QuestionAnswering"])
def test_problem_types_change_nothing_for_tokens(task: str) -> None:
    values = BERT | {"architectures": [f"BertFor{task}"]}
    plain = config_from_hf(values, EncoderConfig)
    for problem in (SINGLE, MULTI, REGRESSION):
        assert config_from_hf(values | {"problem_type": problem}, EncoderConfig) == plain


def cross_encoder(folder: Path, modules: list[str], **values: Any) -> Path:
    """Folder of a BERT of one label, with the files of sentence-transformers."""
    config = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    listed = [{"type": f"sentence_transformers.base.modules.{kind}"} for kind in modules]
    named = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None} | values
    for file, content in (
        ("config.json", config),
        ("modules.json", listed),
        ("config_sentence_transformers.json", named),
    ):
        (folder / file).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("name", "scores"), [("Identity", "none"), ("Sigmoid", "sigmoid")])
def test_a_cross_encoder_keeps_its_function_next_to_the_config(
    name: str, scores: str, tmp_path: Path
) -> None:
    kind = f"torch.nn.modules.linear.{name}"
    cross_encoder(tmp_path, ["transformer.Transformer"], activation_fn=kind)
    head = read_config(tmp_path, EncoderConfig).head
    assert isinstance(head, ClassifierHead)
    assert head.scores == scores


def test_a_cross_encoder_that_does_more_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for modules, values in (
        (["transformer.Transformer", "dense.Dense"], {}),
        (["transformer.Transformer"], {"default_prompt_name": "q", "prompts": {"q": "query: "}}),
    ):
        folder = cross_encoder(tmp_path, modules, **values)
        assert refusal(partial(read_config, folder, EncoderConfig)) == snapshot

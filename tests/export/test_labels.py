"""Scores of classifier bundles against the pipelines of transformers."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.modeling.tiny_encoders import ROBERTA
from tests.tiny.decoders import VOCABULARY
from tests.tiny.encoders import BERT, DISTILBERT, MASKED, VIT
from tests.tiny.tokenizers import of_texts
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTImageProcessor,
    pipeline,
)

import ortolan
from ortolan.runtime import Encoder, load
from ortolan.runtime.verification.replay import verify

SINGLE, MULTI, REGRESSION = (
    {"problem_type": f"{each}"}
    for each in ("single_label_classification", "multi_label_classification", "regression")
)
ONE: dict[str, Any] = {"num_labels": 1}

TEXTS = ["w9 w12 w10", "w20 w11 w30 w31 w32 w33 w34 w35", "w40"]


def names(count: int) -> dict[str, Any]:
    return {"id2label": {i: f"name {i}" for i in range(count)}}


def narrow(model_type: str, **more: Any) -> dict[str, Any]:
    return BERT | {"model_type": model_type} | MASKED[model_type][1] | more


FAST: dict[str, dict[str, Any]] = {
    "tags": DISTILBERT | names(6) | MULTI,
    "regression": BERT | ONE | REGRESSION,
    "images with tags": VIT | names(5) | MULTI,
}
SLOW: dict[str, dict[str, Any]] = {
    "bert": BERT | names(3),
    "bert tags": BERT | names(6) | MULTI,
    "bert single": BERT | ONE,
    "bert one tag": BERT | ONE | MULTI,
    "bert function": BERT | names(4) | {"function_to_apply": "softmax"},
    "roberta tags": ROBERTA | names(11) | MULTI,
    "roberta regressions": ROBERTA | names(4) | REGRESSION,
    "roberta single": ROBERTA | ONE,
    "xlm-roberta": ROBERTA | {"model_type": "xlm-roberta"} | names(3) | SINGLE,
    "camembert tags": ROBERTA | {"model_type": "camembert"} | names(3) | MULTI,
    "distilbert": DISTILBERT | names(2) | SINGLE,
    "distilbert regression": DISTILBERT | ONE | REGRESSION,
    "albert tags": narrow("albert") | names(5) | MULTI,
    "albert regression": narrow("albert") | ONE | REGRESSION,
    "electra tags": narrow("electra") | names(7) | MULTI,
    "mpnet regression": narrow("mpnet") | ONE | REGRESSION,
    "modernbert tags": narrow("modernbert") | names(5) | MULTI,
    "modernbert single": narrow("modernbert", classifier_pooling="mean") | ONE,
    "eurobert regressions": narrow("eurobert") | names(3) | REGRESSION,
    "roformer tags": narrow("roformer") | names(9) | MULTI,
    "big_bird tags": narrow("big_bird") | names(4) | MULTI,
    "nomic_bert tags": narrow("nomic_bert") | names(4) | MULTI,
    "images": VIT | names(10),
    "images regressions": VIT | names(3) | REGRESSION,
    "images single": VIT | ONE,
}


def save(values: dict[str, Any], folder: Path) -> None:
    """Save a random classifier with its tokenizer or image processor."""
    values = dict(values)
    torch.manual_seed(0)
    kind = values.pop("model_type")
    config = AutoConfig.for_model(kind, **values)
    is_image = kind == "vit"
    auto: Any = AutoModelForImageClassification if is_image else AutoModelForSequenceClassification
    model = auto.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed_positions" not in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    if is_image:
        ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
        return
    special = ["<x>", "[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    fast: Any = PreTrainedTokenizerFast
    fast(
        tokenizer_object=of_texts(special, VOCABULARY),
        pad_token="[PAD]",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def inputs_of(model: Encoder) -> list[Any]:
    random = np.random.default_rng(0)
    if model.tokenizer is not None:
        return list(TEXTS)
    return [random.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(3)]


def by_pipeline(folder: Path, inputs: list[Any]) -> list[dict[str, float]]:
    if isinstance(inputs[0], str):
        said: Any = pipeline("text-classification", model=str(folder))(inputs, top_k=None)
    else:
        images = [Image.fromarray(pixels) for pixels in inputs]
        said = pipeline("image-classification", model=str(folder))(images, top_k=1000)
    return [{one["label"]: one["score"] for one in each} for each in said]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Exports a case once; returns its source and bundle."""

    @cache
    def export(name: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("labels")
        save({**FAST, **SLOW}[name], folder / "source")
        ortolan.export(folder / "source", folder / "bundle")
        return folder / "source", folder / "bundle"

    return export


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_scores_are_those_of_the_pipeline(
    name: str, exported: Callable[[str], tuple[Path, Path]]
) -> None:
    source, bundle = exported(name)
    model = load(bundle, Encoder)
    inputs = inputs_of(model)
    for found, expected in zip(model.classify(inputs), by_pipeline(source, inputs), strict=True):
        assert found.scores.keys() == expected.keys()
        for label, score in expected.items():
            assert found.scores[label] == pytest.approx(score, abs=1e-5)
        assert found.label == next(iter(expected))


# --- the certificate ----------------------------------------------------------------------------


def change(folder: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a file, and update the manifest."""
    document = json.loads((folder / name).read_text())
    edit(document)
    data = json.dumps(document).encode()
    (folder / name).write_bytes(data)
    if name == "manifest.json":
        return
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["files"]:
        if file["name"] == name:
            file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_certificate_has_the_scores_of_its_probes(
    exported: Callable[[str], tuple[Path, Path]],
) -> None:
    _, bundle = exported("tags")

    report = verify(bundle, exact=False, isolate=False)

    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.scores > 1
    assert f"scores of {report.surroundings.scores} probes" in report.surroundings.summary


@pytest.mark.parametrize(
    ("name", "file", "edit"),
    [
        ("tags", "manifest.json", lambda said: said["output"].update(kind="labels")),
        ("tags", "manifest.json", lambda said: said["output"].update(kind="scores")),
        ("regression", "manifest.json", lambda said: said["output"].update(kind="labels")),
        ("tags", "manifest.json", lambda said: said["output"]["labels"].reverse()),
        (
            "tags",
            "certificate.json",
            lambda said: said["surroundings"]["scores"][0].update({"name 0": 0.5}),
        ),
    ],
    ids=["softmax", "none", "sigmoid", "labels", "score"],
)
def test_labels_or_functions_that_were_changed_fail(
    name: str,
    file: str,
    edit: Callable[[dict[str, Any]], object],
    exported: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    copy = shutil.copytree(exported(name)[1], tmp_path / "bundle")
    change(copy, file, edit)

    report = verify(copy, exact=False, isolate=False)

    assert report.verdict == "FAIL"
    assert "labels" in report.device_summary


def test_a_runtime_that_applies_something_else_fails(
    exported: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = "ortolan.runtime.bundle.labels._FUNCTIONS"
    monkeypatch.setattr(functions, {"sigmoid": np.tanh})

    report = verify(exported("tags")[1], exact=False, isolate=False)

    assert report.verdict == "FAIL"
    assert "labels or their scores" in report.device_summary

"""Encoders of texts: answers that agree, and faults that the witness finds."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import findings
from tests.export.witness.text_encoders import CHECKPOINTS
from tests.runtime.damaged_bundles import damage, edit_json, put

import ortolan
from ortolan.export.witness import publisher
from ortolan.modeling.weights import Piece
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.encoding import answer, filling
from ortolan.runtime.inputs import tokenizer as tokenizers
from ortolan.runtime.inputs.ids import TextIds
from ortolan.runtime.inputs.text_reader import TextReader

Exported = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A checkpoint and its bundle, by name and precision."""

    @cache
    def written(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        CHECKPOINTS[name](folder)
        return folder

    @cache
    def export(name: str, precision: Any = "fp32") -> tuple[Path, Path]:
        bundle = tmp_path_factory.mktemp("bundles") / name
        options = ortolan.ExportOptions(proof="quick")
        ortolan.export(written(name), bundle, precision=precision, options=options)
        return written(name), bundle

    return export


ASKED: dict[str, tuple[str, ...]] = {
    "embedder": ("embeddings",),
    "reranker": ("labels",),
    "classifier": ("labels",),
    "tagger": ("labels", "entities"),
    "reader": ("answers",),
    "padded": ("embeddings",),
    "masked": ("blanks",),
}
"""Topics of each checkpoint, after those of all."""


@pytest.mark.parametrize("name", ASKED)
def test_bundles_agree(name: str, exported: Exported) -> None:
    found = findings(*exported(name))
    assert list(found) == ["texts", "inputs", "outputs", "offsets", "vocabulary", *ASKED[name]]
    for finding in found.values():
        assert finding.first is None
        assert finding.unasked is None
        assert finding.questions == finding.agreed > 0


@pytest.mark.parametrize("name", ["embedder", "reader"])
def test_references_of_rounded_weights_agree(name: str, exported: Exported) -> None:
    found = findings(*exported(name, "int8"))
    assert found["outputs"].questions > 2
    assert found["outputs"].largest is not None
    assert {finding.first for finding in found.values()} == {None}


def test_the_library_of_a_folder_is_named(exported: Exported) -> None:
    assert "sentence-transformers" in findings(*exported("embedder"))["outputs"].by
    assert "sentence-transformers" not in findings(*exported("masked"))["outputs"].by


def test_a_missing_library_is_a_reason(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "find_spec", lambda name: None)
    found = findings(*exported("embedder"))
    assert found["texts"].questions > 50
    assert found["outputs"].questions == 0
    assert found["outputs"].unasked == "sentence-transformers is not installed"


def test_a_shorter_context_is_no_difference(exported: Exported, tmp_path: Path) -> None:
    checkpoint, _ = exported("embedder")
    options = ortolan.ExportOptions(proof="quick")
    ortolan.export(checkpoint, tmp_path / "bundle", max_context=12, options=options)
    found = findings(checkpoint, tmp_path / "bundle", max_context=12)
    assert {finding.first for finding in found.values()} == {None}


def test_the_first_layer_that_differs_is_named(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = exported("masked")
    read, name = Piece.ours, "bert.encoder.layer.0.output.dense.weight"
    scale = {name: 1.01}
    monkeypatch.setattr(
        Piece, "ours", lambda self, rows: read(self, rows) * scale.get(self.name, 1.0)
    )
    ortolan.export(checkpoint, tmp_path / "b", options=ortolan.ExportOptions(proof="quick"))
    first = findings(checkpoint, tmp_path / "b")["outputs"].first
    assert first is not None
    assert "first at bert.encoder.layer.0" in first


# --- faults ---------------------------------------------------------------------------------------


def edited(*keys: str | int, value: object) -> Callable[[Path, Path], None]:
    """Another value in the manifest."""
    return lambda checkpoint, bundle: edit_json(bundle, NAME, put(*keys, value=value))


def limited(checkpoint: Path, bundle: Path) -> None:
    """A limit that the bundle does not have."""
    path = checkpoint / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 30}))


def pooled(checkpoint: Path, bundle: Path) -> None:
    """Another pooling of the checkpoint than the bundle has."""
    path = checkpoint / "1_Pooling" / "config.json"
    own = json.loads(path.read_text()) | {
        "pooling_mode_mean_tokens": False,
        "pooling_mode_cls_token": True,
    }
    path.write_text(json.dumps(own))


def approximated(checkpoint: Path, bundle: Path) -> None:
    """Another approximation of an activation, whose numbers are within 2e-4."""
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu_new"}))


def rescaled(checkpoint: Path, bundle: Path) -> None:
    """A weight that is one percent too large."""

    def enlarge(values: Any) -> None:
        values *= 1.01

    name = next(name for name in weights_of(bundle) if "feed_forward.up" in name)
    damage(bundle, name, enlarge)


def weights_of(bundle: Path) -> Sequence[str]:
    graphs = ortolan.runtime.open_bundle(bundle).graphs.values()
    return [tensor.name for graph in graphs for tensor in graph.external]


EDITS: dict[str, tuple[str, str, Any, str, str]] = {
    "pooling": ("embedder", "fp32", pooled, "outputs", "[0, "),
    "pooling of a rounded one": ("embedder", "int8", pooled, "outputs", "[0, "),
    "a weight": ("masked", "fp32", rescaled, "outputs", ": ["),
    "an activation": ("reader", "fp32", approximated, "outputs", ": ["),
    "an activation of a folder": ("embedder", "fp32", approximated, "outputs", ": ["),
    "a prompt": (
        "embedder",
        "fp32",
        edited("source", "prompts", "passage", value="texts: "),
        "embeddings",
        "prompts.passage",
    ),
    "a limit": ("classifier", "fp32", limited, "inputs", "a sentence: ids[29]"),
    "a function": (
        "classifier",
        "fp32",
        edited("output", "kind", value="labels"),
        "labels",
        "function of the scores",
    ),
    "order of labels": (
        "classifier",
        "fp32",
        edited("output", "labels", value=["loud", "calm", "odd"]),
        "labels",
        "names: [0]",
    ),
    "order of labels of a rounded one": (
        "tagger",
        "int8",
        edited("output", "labels", value=["O", "I-PER", "B-PER", "B-LOC", "I-LOC"]),
        "labels",
        "names: [1]",
    ),
}
"""Checkpoint, precision, edit, and the topic that names it in which words."""


@pytest.mark.parametrize("fault", EDITS)
def test_an_edited_bundle_is_found(fault: str, exported: Exported, tmp_path: Path) -> None:
    name, precision, edit, topic, words = EDITS[fault]
    checkpoint, bundle = (
        Path(shutil.copytree(folder, tmp_path / place))
        for place, folder in zip(("checkpoint", "bundle"), exported(name, precision), strict=True)
    )
    edit(checkpoint, bundle)
    first = findings(checkpoint, bundle)[topic].first
    assert first is not None
    assert words in first


def _typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types of a pair that are exchanged."""
    encode = tokenizers.Tokenizer.encode_pair

    def exchanged(self: Any, *texts: str, **options: Any) -> TextIds:
        ids = encode(self, *texts, **options)
        return TextIds(ids, types=[1 - own for own in ids.types])

    monkeypatch.setattr(tokenizers.Tokenizer, "encode_pair", exchanged)


def _trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of tokens that the library trims a second time."""
    place = tokenizers._placed
    monkeypatch.setattr(
        tokenizers,
        "_placed",
        lambda values, flags: [
            own and (own[0] + 1, own[1]) if isinstance(own, tuple) and own[0] > 3 else own
            for own in place(values, flags)
        ],
    )


def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are cut one token too early."""
    read = TextReader.read
    monkeypatch.setattr(
        TextReader, "read", lambda *values, **options: read(*values, **options)[:-1]
    )


def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are too small."""
    for module in (filling, answer):
        own: Any = getattr(module, "scores_of")  # noqa: B009 - it is imported there
        monkeypatch.setattr(module, "scores_of", lambda *values, own=own: 0.9 * own(*values))


def _shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = tokenizers.Tokenizer.encode_with_offsets

    def shifted(self: Any, text: str) -> Any:
        ids, places = encode(self, text)
        return ids, [(start + 1, end + 1) for start, end in places]

    monkeypatch.setattr(tokenizers.Tokenizer, "encode_with_offsets", shifted)


@pytest.mark.parametrize(
    ("name", "fault", "topic", "words"),
    [
        ("reranker", _typed, "inputs", "a pair: types[0]"),
        ("classifier", _early, "inputs", "a sentence: "),
        ("tagger", _trimmed, "entities", "a sentence: none["),
        ("reader", _trimmed, "answers", "windows of a sentence: [0].words["),
        ("reader", _smaller, "answers", "[3]"),
        ("masked", _smaller, "blanks", "a blank: [0][0][2]"),
        ("masked", _shifted, "offsets", "[0][0]"),
    ],
    ids=["types", "cut", "places", "answers", "answer scores", "blank scores", "offsets"],
)
def test_a_fault_of_the_runtime_is_found(
    name: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    topic: str,
    words: str,
    exported: Exported,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = exported(name)
    fault(monkeypatch)
    first = findings(*folders)[topic].first
    assert first is not None
    assert words in first

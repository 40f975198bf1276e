"""Bundles with a head that predicts further tokens: manifests and graphs."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.runtime.bundle.test_graph_checks import CACHE, STEP, value
from tests.runtime.bundle.test_manifest_kinds import document_of, read

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.interface import inputs_of, outputs_of
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import HiddenStates
from ortolan.runtime.errors import GraphError, ManifestError
from ortolan.runtime.graph.summary import GraphSummary
from ortolan.runtime.verification.surroundings import meanings_of

MODEL: dict[str, Any] = {"size": 32, "head": "5" * 64}
HEAD: dict[str, Any] = {"size": 32}

HIDDEN = value("hidden_states", "float32", "b", "n", 32)
PREVIOUS = value("previous_states", "float32", "b", "n", 32)

MODEL_STEP = replace(STEP, outputs=(*STEP.outputs, HIDDEN))
HEAD_STEP = replace(MODEL_STEP, inputs=(*CACHE, PREVIOUS))


def manifest_of(hidden: dict[str, Any] | None, kind: str = "decoder") -> Manifest:
    document = document_of(kind)
    return read(document if hidden is None else document | {"hidden_states": hidden})


def test_only_a_model_has_a_head_and_only_a_head_reads_states() -> None:
    manifests = [manifest_of(hidden) for hidden in (None, MODEL, HEAD)]
    assert [manifest.has_head for manifest in manifests] == [False, True, False]
    assert [manifest.is_head for manifest in manifests] == [False, False, True]
    outputs = [outputs_of("decoder", manifest)[:2] for manifest in manifests]
    assert outputs[1] == outputs[2] == ("logits", "hidden_states")
    assert "hidden_states" not in outputs[0]
    reads = ["previous_states" in inputs_of("decoder", manifest) for manifest in manifests]
    assert reads == [False, False, True]


@pytest.mark.parametrize(("hidden", "summary"), [(MODEL, MODEL_STEP), (HEAD, HEAD_STEP)])
def test_graphs_that_fit_are_accepted(hidden: dict[str, Any], summary: GraphSummary) -> None:
    check_graph("decoder", summary, manifest_of(hidden), file="x.onnx")


@pytest.mark.parametrize(
    ("hidden", "summary", "name"),
    [
        (MODEL, STEP, "hidden_states"),
        (MODEL | {"size": 16}, MODEL_STEP, "hidden_states"),
        (HEAD, MODEL_STEP, "previous_states"),
        (HEAD | {"size": 16}, HEAD_STEP, "previous_states"),
    ],
)
def test_graphs_with_other_states_are_rejected(
    hidden: dict[str, Any], summary: GraphSummary, name: str
) -> None:
    with pytest.raises(GraphError, match=name):
        check_graph("decoder", summary, manifest_of(hidden), file="x.onnx")


@pytest.mark.parametrize(
    ("kind", "hidden", "part"),
    [
        ("encoder", MODEL, "`hidden_states`"),
        ("encoder-decoder", MODEL, "`hidden_states`"),
        ("decoder", {"size": 0}, "size"),
        ("decoder", {"size": 32, "head": "5"}, "head"),
        ("decoder", {"size": 32, "layers": 1}, "layers"),
    ],
)
def test_other_manifests_are_rejected(kind: str, hidden: dict[str, Any], part: str) -> None:
    with pytest.raises(ManifestError, match=part):
        manifest_of(hidden, kind)


def test_the_certificate_tells_heads_apart() -> None:
    manifest = manifest_of(MODEL)
    other = msgspec.structs.replace(manifest, hidden_states=HiddenStates(size=32, head="6" * 64))
    assert len({meanings_of(one) for one in (manifest, other, manifest_of(None))}) == 3

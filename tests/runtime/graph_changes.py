"""Changes to the tiny graph, which is read and checked as in a bundle."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from onnx import ModelProto, helper
from tests.runtime import tiny_bundle

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph import rules as onnx_graph
from ortolan.runtime.graph.summary import GraphSummary

DATA = tiny_bundle.model().SerializeToString()
MANIFEST = tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model()))

Change = Callable[[ModelProto], object]


def changed(change: Change) -> bytes:
    model = tiny_bundle.model()
    change(model)
    return bytes(model.SerializeToString())


def checked(data: bytes) -> GraphSummary:
    """Read a graph with a manifest that names all its forms of nodes."""
    summary = onnx_graph.read(data, file="decoder.onnx")
    manifest = msgspec.structs.replace(MANIFEST, foreign_operators=summary.foreign)
    check_graph("decoder", summary, manifest, file="decoder.onnx")
    return summary


def error_of(data: bytes) -> str:
    with pytest.raises(GraphError, match=r"^decoder\.onnx: ") as caught:
        checked(data)
    return str(caught.value)


def add_node(op_type: str, domain: str = "", **attributes: Any) -> Change:
    def change(model: ModelProto) -> None:
        model.graph.node.append(
            helper.make_node(op_type, ["logits"], ["more"], domain=domain, **attributes)
        )

    return change

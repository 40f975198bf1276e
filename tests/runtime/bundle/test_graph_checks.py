from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.runtime.bundle.test_manifest_kinds import document_of

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.summary import GraphSummary, Value


def manifest_of(kind: str) -> Manifest:
    return msgspec.convert(document_of(kind), Manifest)


def value(name: str, dtype: str, *shape: int | str) -> Value:
    return Value(name=name, dtype=dtype, shape=shape)


TEXT = (value("input_ids", "int64", "b", "t"), value("lengths", "int32", "b"))

EMPTY: dict[str, Any] = {
    "ir_version": 10,
    "opsets": {},
    "operators": {},
    "attention": (),
    "external": (),
    "readers": (),
    "functions": (),
}


def graph(*outputs: Value, inputs: tuple[Value, ...] = TEXT) -> GraphSummary:
    return GraphSummary(inputs=inputs, outputs=outputs, **EMPTY)


LABELS = graph(value("output", "float32", "b", 2))
CROSS = graph(value("cross.0.key", "float32", "sources", 2, "t", 8))
MAPS = graph(
    value("encoder.0.self", "float32", "b", 4, "t", "t"),
    value("decoder.0.cross", "float32", "b", 4, "s", "t"),
)

CACHE = tuple(
    value(f"past_key_values.0.{kind}", "float32", "b", 2, "c", 8) for kind in ("key", "value")
)
PRESENT = tuple(value(f"present.0.{kind}", "float32", "b", 2, "c", 8) for kind in ("key", "value"))
STEP = graph(value("logits", "float32", "b", "n", 24), *PRESENT, inputs=CACHE)
WIDE = value("past_key_values.0.key", "float32", "b", 2, "c", 16)


@pytest.mark.parametrize(
    ("kind", "role", "summary"),
    [
        ("encoder", "encoder", LABELS),
        ("encoder", "encoder", graph(value("output", "float32", "b", "labels"))),
        ("encoder-decoder", "encoder", CROSS),
        ("encoder-decoder", "attention", MAPS),
        ("decoder", "attention", graph(value("decoder.0.self", "float32", 1, 4, "s", "s"))),
        ("decoder", "decoder", STEP),
    ],
)
def test_graph_that_fits_the_manifest_is_accepted(
    kind: str, role: str, summary: GraphSummary
) -> None:
    check_graph(role, summary, manifest_of(kind), file="x.onnx")


@pytest.mark.parametrize(
    ("kind", "role", "summary", "said"),
    [
        ("encoder", "encoder", graph(value("output", "float32", "b", 3)), "'output'"),
        ("encoder", "encoder", graph(value("output", "float16", "b", 2)), "'output'"),
        ("encoder", "encoder", graph(value("output", "float32", "b", "t", 2)), "'output'"),
        ("encoder", "encoder", graph(value("logits", "float32", "b", 2)), "got none"),
        ("encoder", "encoder", replace(LABELS, inputs=TEXT[:1]), "'lengths'"),
        ("encoder", "attention", graph(), "'encoder.0.self'"),
        (
            "encoder-decoder",
            "encoder",
            graph(value("cross.0.key", "float32", "sources", 4, "t", 8)),
            "'cross.0.key'",
        ),
        ("encoder-decoder", "attention", replace(MAPS, outputs=MAPS.outputs[:1]), "cross"),
        ("decoder", "decoder", replace(STEP, inputs=(WIDE, CACHE[1])), "past_key_values.0.key"),
        ("decoder", "decoder", replace(STEP, inputs=CACHE[:1]), "past_key_values.0.value"),
        ("decoder", "decoder", replace(STEP, outputs=STEP.outputs[:2]), "present.0.value"),
        ("decoder", "decoder", replace(STEP, outputs=STEP.outputs[1:]), "logits"),
    ],
)
def test_graph_that_does_not_fit_the_manifest_is_rejected(
    kind: str, role: str, summary: GraphSummary, said: str
) -> None:
    with pytest.raises(GraphError, match=r"^x\.onnx") as caught:
        check_graph(role, summary, manifest_of(kind), file="x.onnx")

    assert said in str(caught.value)

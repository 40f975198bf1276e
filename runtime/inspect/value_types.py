"""The type of element that every node of a graph computes with.

Graphs of bundles declare only their inputs, outputs and weights: the other types follow from
these, operator by operator.
"""

from collections import Counter
from typing import Any, NamedTuple

from ortolan.runtime.graph.schema import text
from ortolan.runtime.graph.tensors import dtype_of
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT

__all__ = ["UNKNOWN", "NodeKind", "node_kinds"]

UNKNOWN = "unknown"
"""The type of what no declared value leads to."""

_GIVES = {
    "ai.onnx::Equal": "bool",
    "ai.onnx::GreaterOrEqual": "bool",
    "ai.onnx::Less": "bool",
    "ai.onnx::Not": "bool",
    "ai.onnx::Shape": "int64",
}
"""What operators give that give another type than they take."""

_CONSTANTS = {1: "float32", 2: "int64", 6: "float32", 7: "int64"}
"""Kind of an attribute of `Constant`, as ONNX counts them, to the type of its elements."""


class NodeKind(NamedTuple):
    """What nodes have in common that a device decides by.

    Attributes:
        operator: `domain::op_type`.
        dtype: of the decisive input.
        takes_weights: whether an input is a weight in a file.
    """

    operator: str
    dtype: str
    takes_weights: bool


def node_kinds(graph: Any) -> Counter[NodeKind]:
    """Count the nodes of each kind; constants are none.

    Args:
        graph: the `Graph` message of `onnx_schema`, its nodes in an order to compute them.

    Raises:
        RefusedError: a type that bundles do not use.
    """
    types = {value.name: _number(value.type.tensor_type.elem_type) for value in graph.input}
    types.update((tensor.name, _number(tensor.data_type)) for tensor in graph.initializer)
    weights = {tensor.name for tensor in graph.initializer if tensor.data_location}
    kinds: Counter[NodeKind] = Counter()
    for node in graph.node:
        operator = f"{text(node.domain) or 'ai.onnx'}::{text(node.op_type)}"
        decisive = _decisive(operator, node, types)
        if operator != "ai.onnx::Constant":
            takes_weights = any(name in weights for name in node.input)
            kinds[NodeKind(operator, decisive, takes_weights)] += 1
        given = _given(operator, node, decisive, types)
        types.update((name, given) for name in node.output)
    return kinds


def _number(number: int) -> str:
    return dtype_of("a value", number)[0]


def _decisive(operator: str, node: Any, types: dict[bytes, str]) -> str:
    index = DECISIVE_INPUT.get(operator, 0)
    return types.get(node.input[index], UNKNOWN) if index < len(node.input) else UNKNOWN


def _given(operator: str, node: Any, decisive: str, types: dict[bytes, str]) -> str:
    """The type of a node's outputs."""
    if operator == "ai.onnx::Constant":
        (attribute,) = node.attribute
        if attribute.HasField("t"):
            return _number(attribute.t.data_type)
        return _CONSTANTS.get(attribute.type, UNKNOWN)
    if operator == "ai.onnx::Cast":
        return next(
            (_number(attribute.i) for attribute in node.attribute if attribute.name == b"to"),
            UNKNOWN,
        )
    if operator == "ai.onnx::CastLike":
        return types.get(node.input[1], UNKNOWN)
    return _GIVES.get(operator, decisive)

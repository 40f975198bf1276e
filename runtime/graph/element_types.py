"""The element types of what nodes give, from those of what they take.

Source: the type constraints of the ONNX operators and of onnxruntime's contrib operators. Only
operators whose outputs are of another type than their first input stand in the tables.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ortolan.runtime.graph.schema import RefusedError, text
from ortolan.runtime.graph.tensors import dtype_of

__all__ = ["UNKNOWN", "Node", "typed_nodes"]

UNKNOWN = "unknown"
"""The type of what no declared value leads to."""

_GIVES: Mapping[str, tuple[str, ...]] = {
    "ai.onnx::And": ("bool",),
    "ai.onnx::ArgMax": ("int64",),
    "ai.onnx::ArgMin": ("int64",),
    "ai.onnx::DynamicQuantizeLinear": ("uint8", "float32", "uint8"),
    "ai.onnx::Equal": ("bool",),
    "ai.onnx::Greater": ("bool",),
    "ai.onnx::GreaterOrEqual": ("bool",),
    "ai.onnx::IsInf": ("bool",),
    "ai.onnx::IsNaN": ("bool",),
    "ai.onnx::Less": ("bool",),
    "ai.onnx::LessOrEqual": ("bool",),
    "ai.onnx::MatMulInteger": ("int32",),
    "ai.onnx::NonZero": ("int64",),
    "ai.onnx::Not": ("bool",),
    "ai.onnx::Or": ("bool",),
    "ai.onnx::Shape": ("int64",),
    "ai.onnx::Size": ("int64",),
    "ai.onnx::TopK": ("", "int64"),
    "com.microsoft::DynamicQuantizeMatMul": ("float32",),
}
"""Types of the outputs that are always the same; an empty one is that of the first input."""

_LIKE_INPUT: Mapping[str, int] = {
    "ai.onnx::CastLike": 1,
    "ai.onnx::DequantizeLinear": 1,
    "ai.onnx::OneHot": 2,
    "ai.onnx::QuantizeLinear": 2,
    "ai.onnx::Where": 1,
    "com.microsoft::DequantizeLinear": 1,
    "com.microsoft::GatherBlockQuantized": 2,
    "com.microsoft::MatMulIntegerToFloat": 2,
    "com.microsoft::QuantizeLinear": 2,
}
"""The input that outputs are of the type of, where it is not the first."""

_CONSTANTS: Mapping[int, str] = {1: "float32", 2: "int64", 6: "float32", 7: "int64"}
"""Kind of an attribute of `Constant`, as ONNX counts them, to the type of its elements."""


class Node(NamedTuple):
    """A node with what is known of its types.

    Attributes:
        operator: `domain::op_type`; the standard domain is `ai.onnx`.
        takes: element types of the inputs; empty for one that is left out.
        gives: of the outputs.
        message: the `Node` message itself.
    """

    operator: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    message: Any


def typed_nodes(graph: Any) -> list[Node]:
    """The nodes of a `Graph` message, in its order.

    Raises:
        RefusedError: a type that bundles do not use; a value that two nodes give.
    """
    types = {value.name: _name(value.type.tensor_type.elem_type) for value in graph.input}
    types.update((tensor.name, _name(tensor.data_type)) for tensor in graph.initializer)
    types[b""] = ""
    operators: dict[tuple[bytes, bytes], str] = {}
    nodes = []
    for message in graph.node:
        key = (message.domain, message.op_type)
        operator = operators.get(key)
        if operator is None:
            operator = operators[key] = f"{text(key[0]) or 'ai.onnx'}::{text(key[1])}"
        takes = tuple([types.get(name, UNKNOWN) for name in message.input])
        names = message.output
        gives = _gives(operator, message, takes, len(names))
        for name, given in zip(names, gives, strict=True):
            if name:
                if name in types:
                    raise RefusedError("each value once", f"{text(name)!r} twice")
                types[name] = given
        if b"" in names:
            gives = tuple(given if name else "" for name, given in zip(names, gives, strict=True))
        nodes.append(Node(operator, takes, gives, message))
    return nodes


def _name(number: int) -> str:
    return dtype_of("a value", number)[0]


def _gives(operator: str, node: Any, takes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The types of a node's outputs."""
    like = _LIKE_INPUT.get(operator, 0)
    given = takes[like] if like < len(takes) else UNKNOWN
    match operator:
        case "ai.onnx::Constant":
            given = _constant(node)
        case "ai.onnx::ConstantOfShape":
            tensors = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
            given = _name(tensors[0].data_type) if tensors else "float32"
        case "ai.onnx::Cast":
            to = [attribute.i for attribute in node.attribute if attribute.name == b"to"]
            given = _name(to[0]) if to else UNKNOWN
    always = _GIVES.get(operator)
    if always is None:
        return (given,) * count
    return tuple(always[index] or given if index < len(always) else given for index in range(count))


def _constant(node: Any) -> str:
    if len(node.attribute) != 1:
        raise RefusedError("one value of a constant", f"{len(node.attribute)}")
    (attribute,) = node.attribute
    if attribute.HasField("t"):
        return _name(attribute.t.data_type)
    return _CONSTANTS.get(attribute.type, UNKNOWN)

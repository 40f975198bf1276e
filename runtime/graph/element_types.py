"""Element types of node outputs, derived from those of the inputs.

Source: the type constraints of the ONNX operators and of onnxruntime's contrib operators. The
tables only list operators whose outputs differ in type from their first input.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ortolan.runtime.graph.schema import RefusedError, parse_model, text
from ortolan.runtime.graph.tensors import dtype_of

UNKNOWN = "unknown"
"""Type of values that no declared value leads to."""

_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})

_BOOLEAN = "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or"

_INDICES = "ArgMax ArgMin NonZero Shape Size"

_FIXED: Mapping[str, tuple[str, ...]] = {
    **{f"ai.onnx::{name}": ("bool",) for name in _BOOLEAN.split()},
    **{f"ai.onnx::{name}": ("int64",) for name in _INDICES.split()},
    "ai.onnx::DynamicQuantizeLinear": ("uint8", "float32", "uint8"),
    "ai.onnx::MatMulInteger": ("int32",),
    "ai.onnx::TopK": ("", "int64"),
    "com.microsoft::DynamicQuantizeMatMul": ("float32",),
}
"""Fixed types of outputs; an empty one is the type of the first input."""

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
"""Index of the input whose type the outputs have, if not the first."""

_CONSTANTS: Mapping[int, str] = {1: "float32", 2: "int64", 6: "float32", 7: "int64"}
"""Element type of a `Constant` by the ONNX number of its attribute's kind."""


class Node(NamedTuple):
    """A `Node` message with its operator, as `domain::op_type`, and its element types.

    The standard domain is `ai.onnx`; the type of an input or output that is left out is empty.
    """

    operator: str
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    message: Any


def counting_nodes(data: bytes) -> set[str]:
    """Names of the nodes of a serialized ModelProto that compute no floats."""
    nodes = typed_nodes(parse_model(data).graph)
    return {text(node.message.name) for node in nodes if _FLOATS.isdisjoint(node.output_types)}


def typed_nodes(graph: Any) -> list[Node]:
    """Return the nodes of a `Graph` message, in order."""
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
        input_types = tuple([types.get(name, UNKNOWN) for name in message.input])
        names = message.output
        output_types = _output_types(operator, message, input_types, len(names))
        for name, dtype in zip(names, output_types, strict=True):
            if name:
                if name in types:
                    raise RefusedError("each value once", f"{text(name)!r} twice")
                types[name] = dtype
        if b"" in names:
            pairs = zip(names, output_types, strict=True)
            output_types = tuple(dtype if name else "" for name, dtype in pairs)
        nodes.append(Node(operator, input_types, output_types, message))
    return nodes


def _name(number: int) -> str:
    return dtype_of("a value", number)[0]


def _output_types(
    operator: str, node: Any, input_types: tuple[str, ...], count: int
) -> tuple[str, ...]:
    like = _LIKE_INPUT.get(operator, 0)
    dtype = input_types[like] if like < len(input_types) else UNKNOWN
    match operator:
        case "ai.onnx::Constant":
            dtype = _constant(node)
        case "ai.onnx::ConstantOfShape":
            tensors = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
            dtype = _name(tensors[0].data_type) if tensors else "float32"
        case "ai.onnx::Cast":
            to = [attribute.i for attribute in node.attribute if attribute.name == b"to"]
            dtype = _name(to[0]) if to else UNKNOWN
    fixed = _FIXED.get(operator)
    if fixed is None:
        return (dtype,) * count
    return tuple(fixed[index] or dtype if index < len(fixed) else dtype for index in range(count))


def _constant(node: Any) -> str:
    if len(node.attribute) != 1:
        raise RefusedError("one value of a constant", f"{len(node.attribute)}")
    (attribute,) = node.attribute
    if attribute.HasField("t"):
        return _name(attribute.t.data_type)
    return _CONSTANTS.get(attribute.type, UNKNOWN)

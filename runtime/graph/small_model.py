"""Writes models of a few nodes, such as those that copy states within a device."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ortolan.runtime.graph.schema import message_of

OPSET, IR_VERSION = 21, 10

_INT = 2
"""Type of an attribute."""

_DTYPES = {"float32": 1, "int8": 3, "int64": 7, "float16": 10}
"""Element types, as ONNX numbers them."""


class Node(NamedTuple):
    """A node of the domain ai.onnx, with attributes that are integers."""

    operator: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, int] = {}


def write_model(
    nodes: Sequence[Node], *, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> bytes:
    """Return a serialized ModelProto."""
    model = message_of("Model")
    model.ir_version = IR_VERSION
    model.opset_import.add(domain=b"", version=OPSET)
    model.graph.name = b"graph"
    for node in nodes:
        added = model.graph.node.add(op_type=node.operator.encode(), output=[node.output.encode()])
        added.input.extend(name.encode() for name in node.inputs)
        for name, value in node.attributes.items():
            added.attribute.add(name=name.encode(), i=value, type=_INT)
    for values, dtypes in ((model.graph.input, inputs), (model.graph.output, outputs)):
        for name, dtype in dtypes.items():
            values.add(name=name.encode()).type.tensor_type.elem_type = _DTYPES[dtype]
    serialized: bytes = model.SerializeToString()
    return serialized

"""Writes nodes and models of a few nodes, such as those that copy states within a device."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.graph.schema import message_of

OPSET, IR_VERSION = 21, 10

_INT = 2
"""Type of an attribute."""

_DTYPES = {"float32": 1, "int8": 3, "int64": 7, "float16": 10}
"""Element types, as ONNX numbers them."""


def node_of(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> Any:
    """Return a `Node` message of the domain ai.onnx."""
    node = message_of("Node")
    node.op_type = operator.encode()
    node.input.extend(name.encode() for name in inputs)
    node.output.append(output.encode())
    for name, value in attributes.items():
        node.attribute.add(name=name.encode(), i=value, type=_INT)
    return node


def write_model(
    nodes: Sequence[Any], *, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> bytes:
    """Return a serialized ModelProto."""
    model = message_of("Model")
    model.ir_version = IR_VERSION
    model.opset_import.add(domain=b"", version=OPSET)
    model.graph.name = b"graph"
    model.graph.node.extend(nodes)
    for values, dtypes in ((model.graph.input, inputs), (model.graph.output, outputs)):
        for name, dtype in dtypes.items():
            values.add(name=name.encode()).type.tensor_type.elem_type = _DTYPES[dtype]
    serialized: bytes = model.SerializeToString()
    return serialized

"""The part of the ONNX schema that the runtime needs, and its parser.

The `onnx` package is 88 MB and stays off the device; `protobuf` comes with onnxruntime. The field
numbers and wire types are those of ONNX IR 13, `onnx.proto`. Three choices:

1. The messages have their own pool and package, so `onnx` may be imported in the same process.
2. Text is declared as bytes and enumerations as int32, so invalid values parse and can be rejected.
3. Subgraphs, sparse tensors and training information are declared as bytes, and rejected unread.
   So no message contains itself, and no file can make the parser recurse.
"""

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

from ortolan.runtime import limits

_PACKAGE = "ortolan.onnx"

# message -> field -> (number, type); * means repeated, capitalized types are messages
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {
        "ir_version": (1, "int64"),
        "graph": (7, "Graph"),
        "opset_import": (8, "Opset*"),
        "training_info": (20, "bytes*"),
        "functions": (25, "Function*"),
    },
    "Opset": {"domain": (1, "bytes"), "version": (2, "int64")},
    "Function": {"name": (1, "bytes"), "node": (7, "Node*"), "domain": (10, "bytes")},
    "Graph": {
        "node": (1, "Node*"),
        "name": (2, "bytes"),
        "initializer": (5, "Tensor*"),
        "input": (11, "ValueInfo*"),
        "output": (12, "ValueInfo*"),
        "sparse_initializer": (15, "bytes*"),
    },
    "Node": {
        "input": (1, "bytes*"),
        "output": (2, "bytes*"),
        "name": (3, "bytes"),
        "op_type": (4, "bytes"),
        "attribute": (5, "Attribute*"),
        "domain": (7, "bytes"),
    },
    "Attribute": {
        "name": (1, "bytes"),
        "f": (2, "float"),
        "i": (3, "int64"),
        "s": (4, "bytes"),
        "t": (5, "Tensor"),
        "g": (6, "bytes"),
        "floats": (7, "float*"),
        "ints": (8, "int64*"),
        "tensors": (10, "Tensor*"),
        "graphs": (11, "bytes*"),
        "type": (20, "int32"),
        "ref_attr_name": (21, "bytes"),
        "sparse_tensor": (22, "bytes"),
        "sparse_tensors": (23, "bytes*"),
    },
    "Tensor": {
        "dims": (1, "int64*"),
        "data_type": (2, "int32"),
        "segment": (3, "bytes"),
        "float_data": (4, "float*"),
        "int32_data": (5, "int32*"),
        "string_data": (6, "bytes*"),
        "int64_data": (7, "int64*"),
        "name": (8, "bytes"),
        "raw_data": (9, "bytes"),
        "double_data": (10, "double*"),
        "uint64_data": (11, "uint64*"),
        "external_data": (13, "Entry*"),
        "data_location": (14, "int32"),
    },
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "ValueInfo": {"name": (1, "bytes"), "type": (2, "Type")},
    "Type": {
        "tensor_type": (1, "TensorType"),
        "sequence_type": (4, "bytes"),
        "map_type": (5, "bytes"),
        "opaque_type": (7, "bytes"),
        "sparse_tensor_type": (8, "bytes"),
        "optional_type": (9, "bytes"),
    },
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "Dimension*")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "bytes")},
}

# all fields of these messages form one oneof; the last one in the file wins
_ONEOFS = frozenset({"Type", "Dimension"})


class RefusedError(Exception):
    """A graph breaks a rule. The caller adds the file name."""

    def __init__(self, expected: str, got: str) -> None:
        # names come from the file, and may be as long as it is
        super().__init__(f"expected {expected[:300]}, got {got[:300]}")


def require(is_fine: object, expected: str, got: str) -> None:
    """Raise `RefusedError` unless something is as expected."""
    if not is_fine:
        raise RefusedError(expected, got)


def check_count(what: str, count: int, limit: int) -> None:
    """Check that `count` is at most `limit`."""
    require(count <= limit, f"at most {limit} {what}", f"{count}")


def text(data: bytes) -> str:
    """Decode text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError("names in UTF-8", repr(data)) from error


def parse_model(data: bytes) -> Any:
    """Parse a ModelProto, after bounding the cost of parsing it."""
    _check_field_count(data)
    return _parse("Model", data)


def message_of(name: str) -> Any:
    """Return an empty message, such as `Model`."""
    return _CLASSES[name]()


def _parse(name: str, data: bytes) -> Any:
    try:
        return _CLASSES[name].FromString(data)
    except message.DecodeError as error:
        raise RefusedError("an ONNX graph", f"{len(data)} bytes that are not protobuf") from error


def _check_field_count(data: bytes) -> None:
    """Count the fields of all messages that will be parsed; packed numbers count one per byte."""
    budget = limits.MAX_GRAPH_FIELDS
    pending = [(0, len(data), "Model")]
    while pending:
        position, end, name = pending.pop()
        nested, packed = _NESTED[name], _PACKED[name]
        while position < end:
            key, position = _varint(data, position, end)
            budget -= 1
            number, wire_type = key >> 3, key & 7
            if wire_type == 0:
                _, position = _varint(data, position, end)
            elif wire_type == 1:
                position += 8
            elif wire_type == 5:
                position += 4
            elif wire_type == 2:
                length, position = _varint(data, position, end)
                if number in nested:
                    pending.append((position, min(position + length, end), nested[number]))
                budget -= length if number in packed else 0
                position += length
            else:
                raise RefusedError("an ONNX graph", f"protobuf wire type {wire_type}")
            if budget < 0:
                raise RefusedError(f"at most {limits.MAX_GRAPH_FIELDS} protobuf fields", "more")
        if position != end:
            raise RefusedError("a complete ONNX graph", f"a truncated {name}")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise RefusedError("a complete ONNX graph", "a truncated number")


def _file_descriptor() -> Any:
    """Build the FileDescriptorProto of `_SCHEMA`."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="ortolan/onnx.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _SCHEMA.items():
        descriptor = file.message_type.add(name=name)
        if name in _ONEOFS:
            descriptor.oneof_decl.add(name="value")
        for field_name, (number, kind) in fields.items():
            field = descriptor.field.add(name=field_name, number=number)
            repeated = kind.endswith("*")
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            if kind in _SCHEMA:
                field.type = field_type.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
            if name in _ONEOFS:
                field.oneof_index = 0
    return file


def _message_classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file_descriptor().SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _SCHEMA
    }


_CLASSES = _message_classes()

_NESTED = {
    name: {number: kind.removesuffix("*") for number, kind in fields.values() if kind[0].isupper()}
    for name, fields in _SCHEMA.items()
}

_PACKED = {
    name: {
        number
        for number, kind in fields.values()
        if kind.endswith("*") and kind[0].islower() and kind != "bytes*"
    }
    for name, fields in _SCHEMA.items()
}

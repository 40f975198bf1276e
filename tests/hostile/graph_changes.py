"""Changes to any field of an ONNX graph, and traps."""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx.defs
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, numpy_helper
from tests.hostile.documents import flip_bytes, logarithmic
from tests.hostile.traps import set_trap
from tests.nonsense import FLOATS, INTEGERS, STRINGS

_UNREAD = frozenset(
    f"onnx.{name}"
    for name in (
        *("GraphProto.name", "GraphProto.doc_string", "GraphProto.value_info", "NodeProto.name"),
        *("NodeProto.doc_string", "ModelProto.producer_name", "AttributeProto.doc_string"),
    )
)
"""Fields without a meaning."""

_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft.nchwc", "x", "\ud7ff", "com.m")

_WORDS = tuple(word for word in STRINGS if word.isascii())

_HOW = ("replace", "replace", "replace", "add", "repeat", "cut", "remove", "exchange")

_NUMBERS: dict[int, type[Any]] = {
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.FLOAT: np.float32,
}


def change_graph(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change one thing in a graph, and describe the change."""
    model = ModelProto.FromString(data)
    summary = set_trap(random, model) if random.random() < 0.1 else _change_field(random, model)
    return model.SerializeToString(), summary


def _change_field(random: Random, model: ModelProto) -> str:
    message, field = _place(random, _start(random, model))
    name = f"{message.DESCRIPTOR.name} {getattr(message, 'name', '')}.{field.name}"
    if hasattr(getattr(message, field.name), "extend"):
        return f"{name}: {_change_items(random, model, message, field)}"
    if random.random() < 0.15:
        message.ClearField(field.name)
        return f"{name} cleared"
    value = _value(random, model, message, field)
    if isinstance(value, Message):
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)
    return f"{name} is {_shown(value)}"


def _shown(value: object) -> str:
    return " ".join(f"{value!r}".split())[:60]


def _start(random: Random, model: ModelProto) -> Message:
    """The message to walk down from."""
    graph = model.graph
    chosen: list[Message] = [
        random.choice([*part, graph]) for part in (graph.node, graph.initializer)
    ]
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    values = [*graph.input, *graph.output]
    chosen += [random.choice([*part, graph]) for part in (attributes, values)]
    return random.choices([*chosen, graph, model], (36, 20, 22, 6, 12, 4))[0]


def _place(random: Random, message: Message) -> tuple[Any, FieldDescriptor]:
    """Walk down to a field, mostly one that is set."""
    every = [field for field in message.DESCRIPTOR.fields if field.full_name not in _UNREAD]
    present = [field for field, _ in message.ListFields() if field.full_name not in _UNREAD]
    field = random.choice(present if present and random.random() < 0.9 else every)
    if field.message_type is not None and field in present and random.random() < 0.85:
        inner = getattr(message, field.name)
        return _place(random, random.choice(inner) if hasattr(inner, "extend") else inner)
    return message, field


def _change_items(random: Random, model: ModelProto, message: Any, field: FieldDescriptor) -> str:
    """Replace, remove, repeat or exchange some of the items of a field, or add one."""
    items = list(getattr(message, field.name))
    at = random.randrange(len(items) + 1)
    match random.choice(_HOW):
        case "remove" if at < len(items):
            what = f"{at} removed"
            del items[at]
        case "cut":
            what = f"cut to {at}"
            del items[at:]
        case "repeat" if items:
            count = logarithmic(random, 300)
            what = f"{count} more"
            items[at:at] = random.choices(items, k=count)
        case "exchange" if items:
            other = random.randrange(len(items))
            at = min(at, len(items) - 1)
            items[at], items[other] = items[other], items[at]
            what = f"{at} and {other} exchanged"
        case how:
            value = _value(random, model, message, field)
            items[at : at + (how == "replace")] = [value]
            what = f"{at} is {_shown(value)}"
    if field.message_type is not None:  # clearing empties the items
        items = [type(item).FromString(item.SerializeToString()) for item in items]
    message.ClearField(field.name)
    getattr(message, field.name).extend(items)
    return what


def _value(random: Random, model: ModelProto, message: Any, field: FieldDescriptor) -> Any:
    """An extreme value, or one from elsewhere in the model."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            known = [part for part in _parts(model) if part.DESCRIPTOR is field.message_type]
            new = field.message_type._concrete_class()
            if known:  # a copy, since it may hold the place that it goes to
                new.ParseFromString(random.choice(known).SerializeToString())
            return new
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice(list(field.enum_type.values_by_number))
        case FieldDescriptor.CPPTYPE_INT32:
            return random.choice([*range(27), -1, 2**31 - 1, -(2**31)])
        case FieldDescriptor.CPPTYPE_STRING:
            return _text(random, model, message, field)
    return random.choice(INTEGERS)


def _text(random: Random, model: ModelProto, message: Any, field: FieldDescriptor) -> str | bytes:
    if field.name == "raw_data":
        return _numbers(random, message)
    if field.name in ("op_type", "domain") and random.random() < 0.4:
        return random_operator(random)[field.name == "op_type"]
    words = {getattr(part, "name", "") for part in _parts(model)}
    words |= {word for node in model.graph.node for word in (*node.output, node.op_type)}
    word = random.choice([*sorted(words), "", "nowhere", f"{random.choice(INTEGERS)}", *_WORDS])
    return word.encode() if field.type == FieldDescriptor.TYPE_BYTES else word


def _numbers(random: Random, tensor: TensorProto) -> bytes:
    """Change some numbers of a tensor, or the number of its bytes."""
    data = tensor.raw_data
    kind = _NUMBERS.get(tensor.data_type)
    if random.random() < 0.2 or not data:
        return random.choice([b"", data[1:], data * 2, bytes(9)])
    if kind is None or len(data) % np.dtype(kind).itemsize or random.random() < 0.2:
        return flip_bytes(random, data)[0]
    numbers = np.frombuffer(data, kind).copy()
    first = random.randrange(numbers.size)
    with np.errstate(all="ignore"):
        value = np.array(random.choice(FLOATS if kind is np.float32 else INTEGERS)).astype(kind)
    numbers[first : random.choice([first + 1, numbers.size])] = value
    return numbers.tobytes()


def _parts(message: Any) -> Iterator[Any]:
    """Messages inside a message, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "extend") else [value]:
                yield part
                yield from _parts(part)


def random_tensor(random: Random, name: str) -> TensorProto:
    """Return a small tensor of any type, sometimes of strings."""
    if random.random() < 0.1:
        texts = TensorProto(name=name, data_type=TensorProto.STRING, dims=[2])
        texts.string_data[:] = [b"a", b"b"]
        return texts
    shape = random.choice([(), (0,), (1,), (2,), (1, 1), (3, 4), (0, 4), (1, 2, 3, 4)])
    kinds = (np.float32, np.int64, np.int32, np.float64, np.float16, np.int8, np.uint8, np.bool_)
    with np.errstate(all="ignore"):
        array = np.full(shape, random.choice(INTEGERS), np.int64).astype(random.choice(kinds))
    tensor: TensorProto = numpy_helper.from_array(array, name)
    return tensor


@cache
def attribute_names() -> dict[tuple[str, str], list[str]]:
    """Return the attributes of every operator of onnxruntime and ONNX, by domain and name."""
    # late: the runtime must be imported first
    from onnxruntime.capi import (  # type: ignore[import-untyped]
        onnxruntime_pybind11_state as library,
    )

    schemas = [*onnx.defs.get_all_schemas_with_history(), *library.get_all_operator_schema()]
    return {(schema.domain, schema.name): list(schema.attributes) for schema in schemas}


def random_operator(random: Random) -> tuple[str, str]:
    """Return a domain and a name, sometimes of an operator that does not exist."""
    domain, name = random.choice(sorted(attribute_names()))
    if random.random() < 0.05:
        domain = random.choice(_DOMAINS)
    if random.random() < 0.05:
        name = random.choice([name.lower(), f"{name}2", "", name[:-1]])
    return domain, name

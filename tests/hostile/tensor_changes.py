"""Changes to the tensors of a graph: shape, type, data and place in the weights."""

import math
from random import Random

import numpy as np
from onnx import TensorProto, numpy_helper
from tests.hostile.documents import flip_bytes
from tests.nonsense import INTEGERS, STRINGS

_SMALL = 1 << 12
"""Elements of a new array, at most."""


def change_initializer(random: Random, tensor: TensorProto) -> str:
    """Change one thing about a tensor, and describe the change."""
    name = tensor.name
    match random.randrange(7):
        case 0:
            dims = list(tensor.dims) or [1]
            dims[random.randrange(len(dims))] = random.choice(INTEGERS)
            tensor.dims[:] = dims
            return f"{name} of shape {dims}"
        case 1:
            dims = list(tensor.dims)
            dims = random.choice([dims[1:], [*dims, 1], [1, *dims], [math.prod(dims)], dims[::-1]])
            tensor.dims[:] = dims
            return f"{name} of shape {dims}"
        case 2:
            tensor.data_type = random.randint(0, 26)
            return f"{name} of type {tensor.data_type}"
        case 3 if tensor.external_data:
            entry = random.choice(tensor.external_data)
            entry.value = random.choice([f"{random.choice(INTEGERS)}", random.choice(STRINGS[:-2])])
            return f"{name}: {entry.key} is {entry.value!r}"
        case 4:
            other = random_tensor(random, name)
            tensor.CopyFrom(other)
            return f"{name} is {other.dims} of type {other.data_type}"
    return _data(random, tensor)


def _data(random: Random, tensor: TensorProto) -> str:
    """Change some numbers, or the number of bytes."""
    if tensor.external_data or not tensor.HasField("raw_data"):
        try:
            array = numpy_helper.to_array(tensor)
        except (TypeError, ValueError):
            array = np.zeros(min(_SMALL, abs(math.prod(tensor.dims))), np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    if random.random() < 0.2:
        tensor.raw_data = random.choice([b"", tensor.raw_data[1:], tensor.raw_data * 2, bytes(9)])
        return f"{tensor.name} has {len(tensor.raw_data)} bytes"
    if tensor.data_type in (TensorProto.INT64, TensorProto.INT32):
        kind = np.int64 if tensor.data_type == TensorProto.INT64 else np.int32
        numbers = np.frombuffer(tensor.raw_data, kind).copy()
        if numbers.size:
            numbers[random.randrange(numbers.size)] = np.array(random.choice(INTEGERS)).astype(kind)
            tensor.raw_data = numbers.tobytes()
            return f"{tensor.name} = {numbers[:8]}"
    if tensor.data_type == TensorProto.FLOAT and random.random() < 0.5:
        numbers = np.frombuffer(tensor.raw_data, np.float32).copy()
        numbers[: random.choice([1, numbers.size])] = random.choice([0, np.nan, np.inf, 3e38, -1])
        tensor.raw_data = numbers.tobytes()
        return f"{tensor.name} = {numbers[:4]}"
    tensor.raw_data, summary = flip_bytes(random, tensor.raw_data)
    return f"{tensor.name}: {summary}"


def random_tensor(random: Random, name: str) -> TensorProto:
    """Return a small tensor of any type, sometimes of strings."""
    shape = random.choice([(), (0,), (1,), (2,), (1, 1), (3, 4), (0, 4), (1, 2, 3, 4)])
    kinds = (np.float32, np.int64, np.int32, np.float64, np.float16, np.int8, np.uint8, np.bool_)
    with np.errstate(all="ignore"):
        array = np.full(shape, random.choice(INTEGERS), np.int64).astype(random.choice(kinds))
    tensor = numpy_helper.from_array(array, name)
    if random.random() < 0.1:
        tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=[2])
        tensor.string_data[:] = [b"a", b"b"]
    return tensor

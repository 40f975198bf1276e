"""Tensors of a graph: their types, and whether their bytes fit their shapes. Reads no file."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ortolan.runtime import limits
from ortolan.runtime.graph.schema import RefusedError, check_count, text
from ortolan.runtime.graph.summary import ExternalTensor

# ONNX element type -> name, bits; no strings, no complex numbers
_DTYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}

# not prepacked_*, which are images of a kernel's memory
_EXTERNAL_FIELDS = frozenset({"location", "offset", "length", "checksum"})

_INSIDE, _OUTSIDE = 0, 1

_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def dtype_of(name: str, number: int) -> tuple[str, int]:
    """Return the name and bits of an element type."""
    if number not in _DTYPES:
        raise RefusedError(f"numbers as elements of {name!r}", f"element type {number}")
    return _DTYPES[number]


def external_tensors(graph: Any) -> Iterator[ExternalTensor]:
    """Check every tensor of a graph; yield those with their bytes in another file."""
    for name, tensor in _tensors(graph):
        check_count(f"axes of {name!r}", len(tensor.dims), limits.MAX_TENSOR_RANK)
        if any(not 0 <= size <= limits.MAX_DIMENSION for size in tensor.dims):
            raise RefusedError(f"sizes of at least 0 for {name!r}", f"{list(tensor.dims)}")
        # other readers might take these bytes for the data
        if tensor.HasField("segment") or tensor.string_data:
            raise RefusedError(f"all numbers of {name!r}", "a segment or text")
        if tensor.data_location == _OUTSIDE:
            yield _external(name, tensor)
        elif tensor.data_location == _INSIDE and not tensor.external_data:
            _check_inside(name, tensor)
        else:
            raise RefusedError(f"the bytes of {name!r} inside or outside the graph", "a mixture")


def _tensors(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield initializers and constants of nodes, each with a name for errors."""
    for tensor in graph.initializer:
        yield text(tensor.name), tensor
    for node in graph.node:
        for attribute in node.attribute:
            name = text(node.output[0]) if node.output else text(attribute.name)
            if attribute.HasField("t"):
                yield name, attribute.t
            for tensor in attribute.tensors:
                yield name, tensor


def _check_inside(name: str, tensor: Any) -> None:
    """Check that a tensor holds exactly the bytes of its shape, in one field."""
    typed = _typed_counts(tensor)
    if len(typed) + tensor.HasField("raw_data") > 1:
        raise RefusedError(f"one field with the data of {name!r}", "several")
    _, bits = dtype_of(name, tensor.data_type)
    # a number in a typed field is one element, or one byte of smaller elements
    expected = _byte_count(tensor.dims, min(bits, 8) if typed else bits)
    got = typed[0] if typed else len(tensor.raw_data)
    if got != expected:
        raise RefusedError(f"{expected} values for {list(tensor.dims)} of {name!r}", f"{got}")


def _external(name: str, tensor: Any) -> ExternalTensor:
    if tensor.HasField("raw_data") or _typed_counts(tensor):
        raise RefusedError(f"the bytes of {name!r} inside or outside the graph", "both")
    fields: dict[str, str] = {}
    for entry in tensor.external_data:
        key = text(entry.key)
        if key in fields or key not in _EXTERNAL_FIELDS:
            raise RefusedError(f"location, offset and length of {name!r}, each once", repr(key))
        fields[key] = text(entry.value)
    dtype, bits = dtype_of(name, tensor.data_type)
    length = _byte_count(tensor.dims, bits)
    stated = _decimal(name, fields.get("length", f"{length}"))
    if stated != length:
        raise RefusedError(f"{length} bytes for {dtype} {list(tensor.dims)} {name!r}", f"{stated}")
    return ExternalTensor(
        name=name,
        dtype=dtype,
        dims=tuple(tensor.dims),
        file=fields.get("location", ""),
        offset=_decimal(name, fields.get("offset", "0")),
        length=length,
    )


def _typed_counts(tensor: Any) -> list[int]:
    """Count the numbers in each non-empty typed field."""
    counts = [len(getattr(tensor, field)) for field in _TYPED_FIELDS]
    return [count for count in counts if count]


def _byte_count(dims: Iterable[int], bits: int) -> int:
    return (math.prod(dims) * bits + 7) // 8


def _decimal(name: str, digits: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", digits):
        raise RefusedError(f"decimal offset and length of {name!r}", repr(digits))
    return int(digits)

"""certificate.bin: arrays one after another, as certificate.json lists them.

Little-endian and row by row, each from an offset that is a multiple of 4 bytes, so that any
language reads them without a library.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label
from ortolan.runtime.errors import CertificateError

ALIGNMENT = 4
"""Bytes that every offset is a multiple of."""

Shapes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Type and shape by name of array."""

Size = Annotated[int, Meta(ge=0, le=limits.MAX_FILE_BYTES)]


class ListedArray(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An array of certificate.bin.

    Attributes:
        name: as in `Certificate` and its reference.
        dtype: type of the elements.
        shape: sizes of the axes.
        offset: first byte in the file.
    """

    name: Label
    dtype: Literal["int32", "float32", "uint8"]
    shape: Annotated[tuple[Size, ...], Meta(max_length=4)]
    offset: Size


def damaged(expected: str, got: str) -> CertificateError:
    """Return the error for inconsistent parts of a certificate."""
    return CertificateError(
        f"certificate: expected {expected}, got {got}. "
        "The certificate is damaged or of another model: export the bundle again."
    )


def listed(shapes: Shapes) -> tuple[ListedArray, ...]:
    """List arrays of these types and shapes, with their places in the file."""
    arrays, offset = [], 0
    for name, (dtype, shape) in shapes.items():
        kind: Any = dtype.name
        arrays.append(ListedArray(name=name, dtype=kind, shape=shape, offset=offset))
        offset += -(-_bytes(dtype, shape) // ALIGNMENT) * ALIGNMENT
    return tuple(arrays)


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the contents of the file, always the same for the same arrays."""
    parts = []
    for array in arrays.values():
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [data, bytes(-len(data) % ALIGNMENT)]
    return b"".join(parts)


def unpack(data: bytes, expected: Shapes) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file."""
    places = listed(expected)
    size = sum(-(-_bytes(*shape) // ALIGNMENT) * ALIGNMENT for shape in expected.values())
    if len(data) != size:
        raise damaged(f"{size} bytes of arrays", f"{len(data)}")
    arrays = {}
    for place, (dtype, shape) in zip(places, expected.values(), strict=True):
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(data, dtype.newbyteorder("<"), count, place.offset)
        arrays[place.name] = values.astype(dtype, copy=False).reshape(shape)
    return arrays


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))

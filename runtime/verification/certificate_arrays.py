"""certificate.bin: arrays one after another, as certificate.json lists them.

Little-endian and row by row, each from an offset that is a multiple of 4 bytes, so that any
language reads them without a library.
"""

import math
from collections.abc import Mapping, Sequence
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
    """An array of certificate.bin, named as in `Certificate` and its reference."""

    name: Label
    dtype: Literal["int32", "float32", "uint8"]
    shape: Annotated[tuple[Size, ...], Meta(max_length=4)]
    offset: Size

    @property
    def end(self) -> int:
        """Where the next array begins."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return self.offset + size + -size % ALIGNMENT


def damaged(expected: str, got: str) -> CertificateError:
    """Return the error for inconsistent parts of a certificate."""
    return CertificateError(
        f"certificate: expected {expected}, got {got}. "
        "The certificate is damaged or of another model: export the bundle again."
    )


def listed(shapes: Shapes) -> tuple[ListedArray, ...]:
    """List arrays of these types and shapes, with their places in the file."""
    arrays: list[ListedArray] = []
    for name, (dtype, shape) in shapes.items():
        kind: Any = dtype.name
        offset = arrays[-1].end if arrays else 0
        arrays.append(ListedArray(name=name, dtype=kind, shape=shape, offset=offset))
    return tuple(arrays)


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the contents of the file, always the same for the same arrays."""
    parts = []
    for array in arrays.values():
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [data, bytes(-len(data) % ALIGNMENT)]
    return b"".join(parts)


def unpack(data: bytes, places: Sequence[ListedArray]) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file, as listed."""
    if len(data) != places[-1].end:
        raise damaged(f"{places[-1].end} bytes of arrays", f"{len(data)}")
    arrays = {}
    for place in places:
        dtype = np.dtype(place.dtype)
        count = math.prod(place.shape)
        values = np.frombuffer(data, dtype.newbyteorder("<"), count, place.offset)
        arrays[place.name] = values.astype(dtype, copy=False).reshape(place.shape)
    return arrays

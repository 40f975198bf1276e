"""Buffers of states: rows of them, one state after the other in one piece of memory.

Zeros, not whatever memory holds: a portable body multiplies what follows the valid part by 0, and
0 times NaN is NaN.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.address_space import AddressSpace, reserved
from ortolan.runtime.errors import DeviceError

__all__ = ["Buffer", "allocate", "reserve", "shape_and_type"]

Buffer = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]

_ALIGNMENT = 64
"""Bytes that every buffer begins at a multiple of, within its piece of memory."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}

_Place = tuple[tuple[int, ...], np.dtype[Any], int]
"""Shape and type of a buffer, and where it begins."""


def shape_and_type(
    state: State, *, rows: int, capacity: int
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Of the buffer of a state with room for `capacity` tokens in each row.

    Raises:
        DeviceError: the CPU has no such type.
    """
    if state.dtype not in _DTYPES:
        raise DeviceError(
            f"state {state.name!r}: expected a type that the CPU has, got {state.dtype}. "
            "Run the bundle on the device that it was made for."
        )
    sizes = {"batch": rows, "capacity": capacity}
    shape = tuple(sizes[size] if isinstance(size, str) else size for size in state.shape)
    return shape, _DTYPES[state.dtype]


def allocate(states: Sequence[State], *, rows: int, capacity: int) -> list[Buffer]:
    """Buffers in memory.

    In one piece, since many small ones take a page fault for every 4 KiB: a large one gets large
    pages.

    Raises:
        DeviceError: the CPU has no such type.
        MemoryError: there is no memory.
    """
    places, size = _places(states, rows, capacity)
    return _views(np.zeros(size, np.uint8), places)


def reserve(
    states: Sequence[State], *, rows: int, capacity: int
) -> tuple[AddressSpace, list[Buffer]] | None:
    """Buffers in address space that is reserved; `None` where the system reserves none.

    Raises:
        DeviceError: the CPU has no such type.
    """
    places, size = _places(states, rows, capacity)
    space = reserved(size)
    return None if space is None else (space, _views(space.array, places))


def _places(states: Sequence[State], rows: int, capacity: int) -> tuple[list[_Place], int]:
    """Where each buffer begins, and the size of all of them."""
    places, end = [], 0
    for state in states:
        shape, dtype = shape_and_type(state, rows=rows, capacity=capacity)
        places.append((shape, dtype, end))
        size = math.prod(shape) * dtype.itemsize
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, end


def _views(piece: NDArray[np.uint8], places: list[_Place]) -> list[Buffer]:
    return [np.ndarray(shape, dtype, piece, offset) for shape, dtype, offset in places]

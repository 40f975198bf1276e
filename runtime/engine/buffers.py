"""Buffers of states, one after the other in one piece of memory.

Zeros, not whatever memory holds: a portable body multiplies what follows the valid part by 0, and
0 times NaN is NaN.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.address_space import AddressSpace, reserved

__all__ = ["Buffer", "Layout", "allocate", "reserve"]

Buffer = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]

Layout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a buffer."""

_ALIGNMENT = 64
"""Bytes that every buffer begins at a multiple of, within its piece of memory."""


def allocate(layouts: Sequence[Layout]) -> list[Buffer]:
    """Buffers in memory.

    In one piece, since many small ones take a page fault for every 4 KiB: a large one gets large
    pages.

    Raises:
        MemoryError: there is no memory.
    """
    offsets, size = _places(layouts)
    return _views(np.zeros(size, np.uint8), layouts, offsets)


def reserve(layouts: Sequence[Layout]) -> tuple[AddressSpace, list[Buffer]] | None:
    """Buffers in address space that is reserved; `None` where the system reserves none."""
    offsets, size = _places(layouts)
    space = reserved(size)
    return None if space is None else (space, _views(space.array, layouts, offsets))


def _places(layouts: Sequence[Layout]) -> tuple[list[int], int]:
    """Where each buffer begins, and the size of all of them."""
    offsets, end = [], 0
    for shape, dtype in layouts:
        offsets.append(end)
        size = math.prod(shape) * dtype.itemsize
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _views(piece: NDArray[np.uint8], layouts: Sequence[Layout], offsets: list[int]) -> list[Buffer]:
    return [
        np.ndarray(shape, dtype, piece, offset)
        for (shape, dtype), offset in zip(layouts, offsets, strict=True)
    ]

"""Memory for states: zeroed buffers, one after the other in one piece.

Buffers start as zeros because a portable graph multiplies what follows the valid part by 0, and
0 times NaN is NaN.

Reserved buffers have room for the whole context from the beginning. They are address space that
becomes memory page by page as it is written, so a long context costs nothing until it is used,
never has to be copied to grow, and returns its pages when a sequence leaves. Only on Linux:
elsewhere returned pages need not be zeros, and a system that promises memory for every address
(`vm.overcommit_memory` 2, Windows) reserves none.
"""

import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.pictures import Shift

Buffer = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]

Layout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a buffer."""

_ALIGNMENT = 64
"""Each buffer starts at a multiple of this many bytes."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python exports it since 3.13; the number is the same on every Linux that onnxruntime supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The states of consecutive tokens of a row: all of them, or a part.

    Attributes:
        identity: fingerprint of the bundle that computed them.
        buffers: one per `append` or `replace` state, in their order; batch is 1, capacity is
            `length`. Replaced states have their values after the last of the tokens.
        windowed: number of last tokens that states with a window hold; `None` for all.
        shifts: images that end in it.
    """

    identity: str
    length: int
    buffers: tuple[Buffer, ...]
    windowed: int | None = None
    shifts: tuple[Shift, ...] = ()

    def copy(self) -> "Snapshot":
        """Return a copy that shares no memory."""
        return replace(self, buffers=tuple(buffer.copy() for buffer in self.buffers))


class AddressSpace:
    """Bytes that are zero until they are written."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.array: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        self._mapping = mapping
        self._start = self.array.ctypes.data

    def give_back(self, part: NDArray[Any]) -> None:
        """Return the memory of a contiguous part of the array; it reads as zeros afterwards."""
        start = part.ctypes.data - self._start
        end = start + part.nbytes
        first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
        if first >= last:
            self.array[start:end] = 0
            return
        # neighbours share the pages at both ends
        self.array[start : first * mmap.PAGESIZE] = 0
        self.array[last * mmap.PAGESIZE : end] = 0
        self._mapping.madvise(
            mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
        )


def allocate(layouts: Sequence[Layout]) -> list[Buffer]:
    """Allocate buffers.

    One large piece gets large pages; many small ones would fault once per 4 KiB.
    """
    offsets, size = _offsets(layouts)
    return _views(np.zeros(size, np.uint8), layouts, offsets)


def reserve(layouts: Sequence[Layout]) -> tuple[AddressSpace, list[Buffer]] | None:
    """Allocate buffers in reserved address space; `None` if the system reserves none."""
    offsets, size = _offsets(layouts)
    space = reserved(size)
    return None if space is None else (space, _views(space.array, layouts, offsets))


def reserved(size: int) -> AddressSpace | None:
    """Reserve address space of this many bytes; `None` if the system reserves none."""
    if sys.platform != "linux" or size == 0:
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        mapping = mmap.mmap(-1, size, flags=flags)
    except (OSError, OverflowError):
        return None
    with suppress(OSError):  # a kernel without huge pages
        # a huge page would take 2 MiB for the first token in each head of each row
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return AddressSpace(mapping)


def _offsets(layouts: Sequence[Layout]) -> tuple[list[int], int]:
    """Where each buffer starts, and the size of the whole piece."""
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

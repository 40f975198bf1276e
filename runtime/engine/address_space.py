"""Address space that is reserved at once and becomes memory page by page, as it is written to.

A buffer for all the tokens that there may ever be costs nothing until they come, never has to be
copied when it grows, and gives its pages back when they go.

Linux alone: elsewhere pages that were given back need not be zeros, and a system that promises
memory for every address (`vm.overcommit_memory` 2, Windows) reserves none.
"""

import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AddressSpace", "reserved"]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python names it since 3.13; the number is that of every Linux that onnxruntime runs on."""


class AddressSpace:
    """Bytes that are zero until they are written to.

    Attributes:
        array: uint8, all of it.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self.array: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        self._mapping = mapping
        self._start = self.array.ctypes.data

    def give_back(self, part: NDArray[Any]) -> None:
        """Give the memory of a contiguous part of the array back; it is zeros then."""
        start = part.ctypes.data - self._start
        end = start + part.nbytes
        first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
        if first >= last:
            self.array[start:end] = 0
            return
        # pages at the ends belong to the neighbours as well
        self.array[start : first * mmap.PAGESIZE] = 0
        self.array[last * mmap.PAGESIZE : end] = 0
        self._mapping.madvise(
            mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
        )


def reserved(size: int) -> AddressSpace | None:
    """Reserve address space for that many bytes; `None` where the system has none to reserve."""
    if sys.platform != "linux" or size == 0:
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        mapping = mmap.mmap(-1, size, flags=flags)
    except (OSError, OverflowError):
        return None
    with suppress(OSError):  # a kernel without huge pages
        # one of them holds 2 MiB from the first token on, in each head of each row
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return AddressSpace(mapping)

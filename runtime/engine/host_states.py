"""Host states: the states of all rows in NumPy arrays, in the memory of the CPU.

`DeviceStates` holds them in a GPU, without windows and reserved address space.

Buffers lie one after the other in one piece, and start as zeros because a portable graph multiplies
what follows the valid part by 0, and 0 times NaN is NaN.

Reserved buffers have room for the whole context from the beginning. They are address space that
becomes memory page by page as it is written, so a long context costs nothing until it is used,
never has to be copied to grow, and returns its pages when a sequence leaves. Only on Linux:
elsewhere returned pages need not be zeros, and a system that promises memory for every address
(`vm.overcommit_memory` 2, Windows) reserves none.
"""

import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.pictures import Shift
from ortolan.runtime.engine.windows import Window, WindowedRows

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

Buffer = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]

Layout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of a buffer."""

_ALIGNMENT = 64
"""Each buffer starts at a multiple of this many bytes."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python exports it since 3.13; the number is the same on every Linux that onnxruntime supports."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.float16),  # its 16 bits, which are only moved
    "int8": np.dtype(np.int8),
}


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


class HostStates:
    """States that grow or are replaced, for a number of rows.

    `turn` is 0 or 1: which of the two buffers of replaced states is read. `windows` tells where the
    tokens of each row begin in states with a window.
    """

    def __init__(
        self,
        states: "Sequence[State]",
        *,
        rows: int,
        capacity: int,
        reserve_to: int | None = None,
        window: Window | None = None,
    ) -> None:
        self.capacity = capacity
        self.turn = 0
        self.windows = WindowedRows(window, rows)
        self._states = tuple(states)
        self._windowed = [
            number
            for number, state in enumerate(states)
            if state.window is not None and window is not None
        ]
        self._rows = rows
        self._space: AddressSpace | None = None
        if reserve_to is not None:
            layouts = [self._layout(state, reserve_to) for state in self._states]
            self._space = reserved(sum(_room(*one) for one in layouts))
        if reserve_to is None or self._space is None:
            self._buffers = self._allocate(self._states, capacity)
        else:
            self._buffers, self.capacity = _views(layouts, self._space.array), reserve_to
        fixed = [number for number, state in enumerate(states) if state.update == "replace"]
        others = self._allocate([states[number] for number in fixed], 0) if fixed else []
        self._others = dict(zip(fixed, others, strict=True))

    def bound(self, rows: slice) -> "Iterator[tuple[State, Any, Any]]":
        """Yield each state with its input buffer and its output buffer, for some rows."""
        for number, (state, buffer) in enumerate(zip(self._states, self._buffers, strict=True)):
            read, other = buffer[rows], self._others.get(number)
            yield state, read, read if other is None else other[rows]

    def swap(self) -> None:
        """Adopt what a step wrote to the replaced states of all rows."""
        for number, written in self._others.items():
            self._buffers[number], self._others[number] = written, self._buffers[number]
        self.turn ^= 1

    def adopt(self, rows: Sequence[int]) -> None:
        """Adopt what a step wrote to the replaced states of some rows."""
        for number, written in self._others.items():
            self._buffers[number][list(rows)] = written[list(rows)]

    def clear(self, rows: Sequence[int]) -> None:
        """Zero the replaced states of some rows."""
        for number in self._others:
            self._buffers[number][list(rows)] = 0

    def grow(self, capacity: int, valid: int) -> None:
        """Make room for `capacity` tokens per row, and keep the first `valid`."""
        larger = self._allocate(self._states, capacity)
        for state, buffer, new in zip(self._states, self._buffers, larger, strict=True):
            part = along(state, "capacity", slice(0, valid))
            new[part] = buffer[part]
        self._buffers, self.capacity = larger, capacity

    def release(self, rows: slice) -> None:
        """Return the memory of some rows to the system, if it is reserved address space."""
        if self._space is not None:
            for state, buffer in zip(self._states, self._buffers, strict=True):
                if state.update == "append":
                    self._space.give_back(buffer[rows])

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], valid: int) -> None:
        """Copy the first `valid` tokens of some rows to others, all at once."""
        read, written = np.asarray(sources), np.asarray(targets)
        for state, buffer in zip(self._states, self._buffers, strict=True):
            whole = state.update == "replace"
            part = buffer if whole else buffer[along(state, "capacity", slice(0, valid))]
            part[written] = part[read]

    def read(self, row: int, start: int, end: int) -> tuple[Buffer, ...]:
        """Return views of some tokens of a row; replaced states are whole."""
        return self._views(row, slice(start, end), self.windows.slots(row, start, end))

    def write(self, row: int, start: int, snapshot: Snapshot) -> None:
        """Write a snapshot to a row, after its first `start` tokens."""
        end, windowed = start + snapshot.length, None
        if snapshot.windowed is not None:
            self.slide(row, start)
            windowed = self.windows.fill(row, start, end, snapshot.windowed)
        views = self._views(row, slice(start, end), windowed)
        for view, values in zip(views, snapshot.buffers, strict=True):
            view[...] = values

    def _views(self, row: int, part: slice, windowed: slice | None) -> tuple[Buffer, ...]:
        parts = [part] * len(self._states)
        for number in self._windowed:
            parts[number] = windowed or part
        return tuple(
            buffer[row : row + 1][along(state, "capacity", part)]
            for state, buffer, part in zip(self._states, self._buffers, parts, strict=True)
        )

    def slide(self, row: int, length: int) -> None:
        """Slide the window of a row that is used up, before its next call."""
        moved = self.windows.slide(row, length)
        if moved is None:
            return
        count, kept = moved
        for number in self._windowed:
            state, buffer = self._states[number], self._buffers[number][row : row + 1]
            old = along(state, "capacity", slice(count, count + kept))
            buffer[along(state, "capacity", slice(0, kept))] = buffer[old]

    def windowed(self, row: int) -> list[NDArray[Any]]:
        """Return a copy of the states with a window of a row."""
        return [self._buffers[number][row : row + 1].copy() for number in self._windowed]

    def put_windowed(self, row: int, values: list[NDArray[Any]]) -> None:
        """Set the states with a window of a row to a copy of them."""
        for number, value in zip(self._windowed, values, strict=True):
            slots = value.shape[self._states[number].shape.index("capacity")]  # may have grown
            part = along(self._states[number], "capacity", slice(0, slots))
            self._buffers[number][row : row + 1][part] = value

    def replaced(self, row: int) -> list[NDArray[Any]]:
        """Return a copy of the replaced states of a row."""
        return [self._buffers[number][row].copy() for number in self._others]

    def put_replaced(self, row: int, values: list[NDArray[Any]]) -> None:
        """Set the replaced states of a row to a copy of them."""
        for number, value in zip(self._others, values, strict=True):
            self._buffers[number][row] = value

    def _allocate(self, states: "Sequence[State]", capacity: int) -> list[Buffer]:
        return allocate([self._layout(state, capacity) for state in states])

    def _layout(self, state: "State", capacity: int) -> Layout:
        if state.window is not None and self.windows.window is not None:
            capacity = min(capacity, self.windows.window.capacity)
        return layout(state, self._rows, capacity)


def layout(state: "State", rows: int, capacity: int) -> Layout:
    """Shape and type of a state of some rows, as an array of the host."""
    sizes = {"batch": rows, "capacity": capacity}
    shape = tuple(sizes[size] if isinstance(size, str) else size for size in state.shape)
    return shape, _DTYPES[state.dtype]


def along(state: "State", axis: str, part: slice) -> tuple[slice, ...]:
    """An index that selects a part of the named axis and all of the others."""
    return tuple(part if size == axis else slice(None) for size in state.shape)


def allocate(layouts: Sequence[Layout]) -> list[Buffer]:
    """Allocate buffers.

    One large piece gets large pages; many small ones would fault once per 4 KiB.
    """
    return _views(layouts, np.zeros(sum(_room(*one) for one in layouts), np.uint8))


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


def _views(layouts: Sequence[Layout], piece: NDArray[np.uint8]) -> list[Buffer]:
    """Buffers one after the other in a piece of memory."""
    views, offset = list[Buffer](), 0
    for shape, dtype in layouts:
        views.append(np.ndarray(shape, dtype, piece, offset))
        offset += _room(shape, dtype)
    return views


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    size = math.prod(shape) * dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT

"""The buffers of what a decoder carries from one step to the next.

Knows shapes, lengths and memory, from the `states` of a manifest alone. Does not know what a
state means, which tokens stand behind it, nor onnxruntime.

A state that grows (`append`) has room for `capacity` tokens per row, of which the first
`lengths[row]` are valid. Appending and rewinding only change that length: the kernel writes the
new tokens into the buffer itself, and what stands behind the length is never read. Capacity comes
in steps, so that a long context costs memory only when it is used.

A state of fixed size (`replace`) has no earlier value to go back to: it cannot be rewound.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.errors import ContextLengthError, DeviceError, InputError

__all__ = ["CAPACITY_STEP", "Cache", "Snapshot"]

CAPACITY_STEP = 256
"""Tokens. The first capacity, and what every capacity is rounded up to."""

GROWTH = 1.5
"""Factor between capacities: copies stay a constant share of the work, memory within half."""

Buffer = NDArray[np.float32] | NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The valid part of one row, copied.

    Attributes:
        length: tokens of the row.
        buffers: one per state, in their order; batch is 1, capacity is `length`.
    """

    length: int
    buffers: tuple[Buffer, ...]


class Cache:
    """Buffers of all states for a batch of rows, each with its own length.

    Attributes:
        batch: number of rows.
        lengths: valid tokens of each row.
        capacity: tokens that each row has room for.
    """

    def __init__(self, states: tuple[State, ...], *, batch: int, context_length: int) -> None:
        self.batch = batch
        self.lengths = [0] * batch
        self.capacity = min(CAPACITY_STEP, context_length)
        self._states = states
        self._context_length = context_length
        self._capacity_axes = [
            state.shape.index("capacity") if state.update == "append" else None for state in states
        ]
        self._buffers = [self._allocate(state, self.capacity) for state in states]

    @property
    def rewindable(self) -> bool:
        """Whether every state grows, so that earlier tokens are still there."""
        return all(state.update == "append" for state in self._states)

    def buffers(self, row: int | None = None) -> list[Buffer]:
        """The buffers in the order of the manifest's states.

        Args:
            row: one row, as views whose batch is 1; `None` for all rows.
        """
        if row is None:
            return list(self._buffers)
        return [
            buffer[_at(state, "batch", slice(row, row + 1))]
            for state, buffer in zip(self._states, self._buffers, strict=True)
        ]

    def reserve(self, length: int) -> None:
        """Make room for rows of this length. Buffers move when the capacity changes.

        Raises:
            ContextLengthError: the length is beyond the context.
            MemoryError: there is no memory; the cache is as it was.
        """
        if length > self._context_length:
            raise ContextLengthError(
                f"cache: expected at most {self._context_length} tokens, got {length}. "
                "Use a shorter prompt, or fewer new tokens."
            )
        if length <= self.capacity:
            return
        grown = _round_up(max(length, int(self.capacity * GROWTH)))
        capacity = min(grown, self._context_length)
        # All before any: an allocation that fails leaves buffers of one capacity. Untouched
        # zeros take no memory, so the peak is the old buffers and one new one.
        moved = [
            self._allocate(state, capacity) if state.update == "append" else buffer
            for state, buffer in zip(self._states, self._buffers, strict=True)
        ]
        valid = slice(0, max(self.lengths))
        for index, state in enumerate(self._states):
            if state.update == "append":
                part = _at(state, "capacity", valid)
                moved[index][part] = self._buffers[index][part]
                self._buffers[index] = moved[index]
        self.capacity = capacity

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Forget the tokens of a row behind the first `length`.

        Raises:
            InputError: the row is shorter, or a state of the model cannot go back.
        """
        if not 0 <= length <= self.lengths[row]:
            raise InputError(
                f"rewind: expected a length from 0 to {self.lengths[row]}, got {length}. "
                "Only tokens that were appended can be taken back."
            )
        if length == self.lengths[row]:
            return
        if length > 0 and not self.rewindable:
            fixed = next(state.name for state in self._states if state.update == "replace")
            raise InputError(
                f"rewind: expected states that grow, got {fixed!r}, which is overwritten at "
                "every step. Rewind to 0, or restore a snapshot."
            )
        if length == 0:
            for state, buffer in zip(self._states, self.buffers(row), strict=True):
                if state.update == "replace":
                    buffer.fill(0)
        self.lengths[row] = length

    def clear(self) -> None:
        """Forget all tokens of all rows; the memory stays."""
        for state, buffer in zip(self._states, self._buffers, strict=True):
            if state.update == "replace":
                buffer.fill(0)
        self.lengths[:] = [0] * self.batch

    def part(self, batch: int) -> "Cache":
        """The first rows alone. They share memory with this cache as long as neither grows."""
        made = Cache(self._states, batch=0, context_length=self._context_length)
        made.batch, made.lengths = batch, self.lengths[:batch]
        made.capacity = self.capacity
        made._buffers = [buffer[:batch] for buffer in self._buffers]
        return made

    def copy_rows(self, sources: NDArray[np.intp], rows: NDArray[np.intp]) -> None:
        """Put what some rows hold into others, all at once; lengths come with it.

        Args:
            sources: the rows to read, before any is written.
            rows: the rows to write, as many.
        """
        lengths = [self.lengths[source] for source in sources]
        valid = slice(0, max(lengths))
        for axis, buffer in zip(self._capacity_axes, self._buffers, strict=True):
            part = buffer if axis is None else buffer[(slice(None),) * axis + (valid,)]
            part[rows] = part[sources]
        for row, length in zip(rows, lengths, strict=True):
            self.lengths[row] = length

    def snapshot(self, *, row: int = 0) -> Snapshot:
        """Copy the valid part of a row."""
        length = self.lengths[row]
        buffers = tuple(
            buffer[_at(state, "capacity", slice(0, length))].copy()
            if state.update == "append"
            else buffer.copy()
            for state, buffer in zip(self._states, self.buffers(row), strict=True)
        )
        return Snapshot(length=length, buffers=buffers)

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Put a snapshot, of this cache or another with the same states, into a row.

        Raises:
            InputError: the snapshot is of other states.
            ContextLengthError: the snapshot is beyond the context.
            MemoryError: there is no memory; the cache is as it was.
        """
        self._check_states(snapshot)
        self.reserve(snapshot.length)
        for state, buffer, kept in zip(
            self._states, self.buffers(row), snapshot.buffers, strict=True
        ):
            if state.update == "append":
                buffer[_at(state, "capacity", slice(0, snapshot.length))] = kept
            else:
                buffer[...] = kept
        self.lengths[row] = snapshot.length

    @contextmanager
    def unchanged_on_error(self, *, row: int = 0) -> Iterator[None]:
        """Take back what was appended to a row when the block raises."""
        length = self.lengths[row]
        fixed = [
            (index, buffer.copy())
            for index, (state, buffer) in enumerate(
                zip(self._states, self.buffers(row), strict=True)
            )
            if state.update == "replace"
        ]
        try:
            yield
        except BaseException:
            self.lengths[row] = length
            buffers = self.buffers(row)
            for index, kept in fixed:
                buffers[index][...] = kept
            raise

    def _allocate(self, state: State, capacity: int) -> Buffer:
        # Zeros, not whatever memory holds: a portable body multiplies what stands behind the
        # valid part by 0, and 0 times NaN is NaN.
        sizes = {"batch": self.batch, "capacity": capacity}
        shape = [sizes[size] if isinstance(size, str) else size for size in state.shape]
        if state.dtype == "bfloat16":
            raise DeviceError(
                f"state {state.name!r}: expected a type that the CPU has, got bfloat16. "
                "Run the bundle on the device that it was made for."
            )
        if state.dtype == "float16":
            return np.zeros(shape, np.float16)
        return np.zeros(shape, np.float32)

    def _check_states(self, snapshot: Snapshot) -> None:
        expected = [
            tuple(
                {"batch": 1, "capacity": snapshot.length}[size] if isinstance(size, str) else size
                for size in state.shape
            )
            for state in self._states
        ]
        got = [buffer.shape for buffer in snapshot.buffers]
        types = [buffer.dtype.name for buffer in snapshot.buffers]
        if got != expected or types != [state.dtype for state in self._states]:
            raise InputError(
                "restore: expected a snapshot of the same states, got one with other shapes or "
                "types. Restore it into a cache of the model it came from."
            )


def _at(state: State, axis: str, part: slice) -> tuple[slice, ...]:
    """An index that takes a part of the axis of that name and all of the others."""
    return tuple(part if size == axis else slice(None) for size in state.shape)


def _round_up(length: int) -> int:
    return -(-length // CAPACITY_STEP) * CAPACITY_STEP

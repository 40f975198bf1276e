"""Slots: what a decoder carries from one step to the next, a row of states for each text.

A slot belongs to one request. It has one row, or one for each beam of a search; after an encoder
it also holds what the decoder reads of its source. There are three kinds of state:

* `append` grows. A row has room for `capacity` tokens, of which the first `lengths[row]` are valid.
  The kernel writes new tokens in place, so its input and its output are one buffer, and taking
  tokens back only changes a length. A long context costs memory only when it is used: capacity
  comes in steps, for which what is there is copied, or is that of the context from the beginning,
  in reserved address space.
* `replace` has a fixed size. A graph may read the old value after it has written the new one, so
  input and output are two buffers, which take turns. A row that took no part in a step keeps its
  old value, whatever the graph wrote for it.
* `source` is computed once, by the encoder, and only read.

Knows shapes, lengths and memory. Does not know which tokens the rows hold, nor onnxruntime.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.buffers import AddressSpace, Buffer, Layout, allocate, reserve
from ortolan.runtime.errors import ContextLengthError, DeviceError, InputError

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

__all__ = ["CAPACITY_STEP", "Buffer", "Encoded", "Slots", "Snapshot"]

CAPACITY_STEP = 256
"""Tokens. The first capacity, and what every capacity is rounded up to."""

GROWTH = 1.5
"""Factor between capacities: copies stay a constant share of the work, memory within half."""


_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What a decoder reads of some sources.

    Attributes:
        lengths: valid tokens of each source, int32 `(sources,)`.
        states: one tensor for each state with the update `source`, in the order of the manifest.
    """

    lengths: NDArray[np.int32]
    states: tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The states of some tokens of a row, all of them or those from one to another.

    Attributes:
        identity: of the bundle that computed it.
        length: tokens.
        buffers: one per state that is written, in their order; batch is 1, capacity is `length`.
            Replaced states are as they are after the last of the tokens.
    """

    identity: str
    length: int
    buffers: tuple[Buffer, ...]

    def copy(self) -> "Snapshot":
        """The same in memory of its own."""
        return replace(self, buffers=tuple(buffer.copy() for buffer in self.buffers))


class Slots:
    """The states of a number of slots, each with as many rows as a search has beams.

    Args:
        states: of the manifest.
        count: slots.
        beams: rows of each slot, one after the other.
        context_length: most tokens of a row.
        identity: of the bundle; a snapshot of another one is refused.
        reserved: whether growing states lie in reserved address space, where the system has it:
            they never move, and a slot that is released gives its memory back. Each page takes a
            moment when it is first written to. Otherwise they lie in large pages, and keep them.

    Attributes:
        lengths: valid tokens of each row.
        context_length: most tokens of a row.
        capacity: tokens that each row has room for.
        replaces: whether there are replaced states; without them rows can be rewound.
        turn: which of the two buffers of replaced states is read, 0 or 1.
        keeps: whether a slot that is released keeps its memory, with what is in it.
    """

    def __init__(
        self,
        states: "tuple[State, ...]",
        *,
        count: int,
        context_length: int,
        beams: int = 1,
        identity: str = "",
        reserved: bool = False,
    ) -> None:
        self.keeps = False
        self.count, self.beams = count, beams
        self.lengths = [0] * (count * beams)
        self.capacity = min(CAPACITY_STEP, context_length)
        self.turn = 0
        self.identity = identity
        self.context_length = context_length
        self._states = tuple(state for state in states if state.update != "source")
        self._read = tuple(state for state in states if state.update == "source")
        self._fixed = [n for n, state in enumerate(self._states) if state.update == "replace"]
        self.replaces = len(self._fixed) > 0
        self._space: AddressSpace | None = None
        self._buffers: list[Buffer] = []
        if reserved:
            self._reserve_context()
        if self._space is None:
            self._buffers = self._allocate(self._states, self.capacity)
        others = self._allocate([self._states[n] for n in self._fixed], 0) if self._fixed else []
        self._others = dict(zip(self._fixed, others, strict=True))
        self._source: Encoded | None = None

    # --- what a graph is bound to -----------------------------------------------------------------

    def bound(self, rows: slice) -> Iterator[tuple["State", Buffer, Buffer]]:
        """Each written state with the buffers of its input and of its output, for some rows."""
        for number, (state, buffer) in enumerate(zip(self._states, self._buffers, strict=True)):
            read, other = buffer[rows], self._others.get(number)
            yield state, read, read if other is None else other[rows]

    def sources(self, slots: slice) -> Encoded | None:
        """What the decoder reads of the sources of some slots."""
        if self._source is None:
            return None
        states = tuple(state[slots] for state in self._source.states)
        return Encoded(lengths=self._source.lengths[slots], states=states)

    def take_over(self, rows: Sequence[int]) -> None:
        """Make what a step wrote the states of the rows that took part in it."""
        if not self.replaces:
            return
        part = set(rows)
        if all(row in part for row, length in enumerate(self.lengths) if length > 0):
            for number, written in self._others.items():
                self._buffers[number], self._others[number] = written, self._buffers[number]
            self.turn ^= 1
            return
        for number, written in self._others.items():
            self._buffers[number][list(rows)] = written[list(rows)]

    def begin(self, rows: Sequence[int]) -> None:
        """Zero the replaced states of rows that hold no tokens yet."""
        for number in self._fixed:
            for row in rows:
                if self.lengths[row] == 0:
                    self._buffers[number][row].fill(0)

    # --- lengths and memory -----------------------------------------------------------------------

    def check(self, length: int) -> None:
        """Refuse rows of this length where the context is shorter.

        Raises:
            ContextLengthError: it is.
        """
        if length > self.context_length:
            raise ContextLengthError(
                f"cache: expected at most {self.context_length} tokens, got {length}. "
                "Use a shorter prompt, or fewer new tokens."
            )

    def reserve(self, length: int) -> None:
        """Make room for rows of this length. Buffers move when the capacity changes.

        Raises:
            ContextLengthError: the length is beyond the context.
            MemoryError: there is no memory; everything is as it was.
        """
        self.check(length)
        if length <= self.capacity:
            return
        grown = _round_up(max(length, int(self.capacity * GROWTH)))
        capacity = min(grown, self.context_length)
        moved, valid = self._allocate(self._states, capacity), slice(0, max(self.lengths))
        for state, buffer, larger in zip(self._states, self._buffers, moved, strict=True):
            part = _along(state, "capacity", valid)
            larger[part] = buffer[part]
        self._buffers = moved
        self.capacity = capacity

    def release(self, slot: int) -> None:
        """Forget all tokens of a slot; its memory serves the next request, or is given back."""
        rows = slice(slot * self.beams, (slot + 1) * self.beams)
        self.lengths[rows] = [0] * self.beams
        if self._space is not None and not self.keeps:
            for state, buffer in zip(self._states, self._buffers, strict=True):
                if state.update == "append":
                    self._space.give_back(buffer[rows])

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Forget the tokens of a row after the first `length`.

        Raises:
            InputError: the row is shorter, or a state of the model cannot go back.
        """
        if not 0 <= length <= self.lengths[row]:
            raise InputError(
                f"rewind: expected a length from 0 to {self.lengths[row]}, got {length}. "
                "Only tokens that were appended can be taken back."
            )
        if 0 < length < self.lengths[row] and self._fixed:
            raise InputError(
                f"rewind: expected states that grow, got {self._states[self._fixed[0]].name!r}, "
                "which is replaced at every step. Rewind to 0, or restore a snapshot."
            )
        self.lengths[row] = length

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Put what some rows hold into others, all at once; lengths come with it.

        Args:
            sources: the rows to read, before any is written.
            targets: the rows to write, as many.
        """
        read, written = np.asarray(sources), np.asarray(targets)
        lengths = [self.lengths[row] for row in sources]
        valid = slice(0, max(lengths))
        for state, buffer in zip(self._states, self._buffers, strict=True):
            part = buffer if state.update == "replace" else buffer[_along(state, "capacity", valid)]
            part[written] = part[read]
        for row, length in zip(targets, lengths, strict=True):
            self.lengths[row] = length

    def move(self, slot: int, to: int) -> None:
        """Put a whole slot, its source included, into another, and release the first."""
        beams = range(self.beams)
        self.copy_rows(
            [slot * self.beams + beam for beam in beams], [to * self.beams + beam for beam in beams]
        )
        self.release(slot)
        if self._source is not None:
            self._source.lengths[to] = self._source.lengths[slot]
            for values in self._source.states:
                values[to] = values[slot]

    def put_sources(self, slots: Sequence[int], encoded: Encoded) -> None:
        """Give slots their sources, in this order."""
        if list(slots) == list(range(self.count)):
            self._source = encoded  # every slot has its own: nothing to copy
            return
        held = self._source
        if held is None:
            nothing = tuple(values[:0] for values in encoded.states)
            held = Encoded(lengths=np.ones(self.count, np.int32), states=nothing)
        states = []
        for state, values, new in zip(self._read, held.states, encoded.states, strict=True):
            if not _has_room(values, new, self.count):
                values = _enlarged(values, new, self.count)
            axis = state.shape.index("source")
            for index, slot in enumerate(slots):
                values[slot] = 0
                values[slot][_along(state, "source", slice(0, new.shape[axis]))[1:]] = new[index]
            states.append(values)
        held.lengths[list(slots)] = encoded.lengths
        self._source = Encoded(lengths=held.lengths, states=tuple(states))

    # --- keeping and restoring --------------------------------------------------------------------

    def snapshot(self, *, row: int = 0) -> Snapshot:
        """Copy the valid part of a row."""
        return self.view(row=row).copy()

    def view(self, *, row: int = 0, start: int = 0, end: int | None = None) -> Snapshot:
        """Tokens of a row in place, of use until the row changes: all, or some of them.

        Replaced states are as they are after all of them, whatever `end` says.
        """
        end = self.lengths[row] if end is None else end
        buffers = self._parts(row, start, end)
        return Snapshot(identity=self.identity, length=end - start, buffers=buffers)

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Put a snapshot, of these slots or of others of the same bundle, into a row.

        Raises:
            InputError: the snapshot is of another bundle, or of other states.
            ContextLengthError: the snapshot is beyond the context.
            MemoryError: there is no memory; everything is as it was.
        """
        self._put(snapshot, row, 0)

    def extend(self, snapshot: Snapshot, *, row: int) -> None:
        """Put a snapshot of the tokens that follow after those that a row holds.

        Raises:
            InputError: as for `restore`.
            ContextLengthError: the row would be beyond the context.
            MemoryError: as for `restore`.
        """
        self._put(snapshot, row, self.lengths[row])

    def layout(self, length: int) -> list[Layout]:
        """The shape and the type of each buffer of a snapshot of so many tokens."""
        return [_layout(state, 1, length) for state in self._states]

    @contextmanager
    def unchanged_on_error(self, *, row: int = 0) -> Iterator[None]:
        """Take back what was appended to a row when the block raises."""
        length = self.lengths[row]
        fixed = {number: self._buffers[number][row].copy() for number in self._fixed}
        try:
            yield
        except BaseException:
            self.lengths[row] = length
            for number, kept in fixed.items():
                self._buffers[number][row] = kept
            raise

    def _allocate(self, states: "Sequence[State]", capacity: int) -> list[Buffer]:
        return allocate([_layout(state, len(self.lengths), capacity) for state in states])

    def _reserve_context(self) -> None:
        """Let the buffers have room for the whole context, if the system has address space."""
        rows, capacity = len(self.lengths), self.context_length
        found = reserve([_layout(state, rows, capacity) for state in self._states])
        if found is not None:
            self._space, self._buffers = found
            self.capacity = capacity

    def _parts(self, row: int, start: int, end: int) -> tuple[Buffer, ...]:
        """What each written state holds of some tokens of a row; of a replaced one the whole."""
        return tuple(
            buffer[row : row + 1][_along(state, "capacity", slice(start, end))]
            for state, buffer in zip(self._states, self._buffers, strict=True)
        )

    def _put(self, snapshot: Snapshot, row: int, start: int) -> None:
        got = [(buffer.shape, buffer.dtype) for buffer in snapshot.buffers]
        if snapshot.identity != self.identity or got != self.layout(snapshot.length):
            raise InputError(
                "restore: expected a snapshot of the same bundle, got one of another. "
                "Restore it with the model that it was taken from."
            )
        end = start + snapshot.length
        self.reserve(end)
        for part, kept in zip(self._parts(row, start, end), snapshot.buffers, strict=True):
            part[...] = kept
        self.lengths[row] = end


def _layout(state: "State", rows: int, capacity: int) -> Layout:
    if state.dtype not in _DTYPES:
        raise DeviceError(
            f"state {state.name!r}: expected a type that the CPU has, got {state.dtype}. "
            "Run the bundle on the device that it was made for."
        )
    sizes = {"batch": rows, "capacity": capacity}
    shape = tuple(sizes[size] if isinstance(size, str) else size for size in state.shape)
    return shape, _DTYPES[state.dtype]


def _along(state: "State", axis: str, part: slice) -> tuple[slice, ...]:
    """An index that takes a part of the axis of that name and all of the others."""
    return tuple(part if size == axis else slice(None) for size in state.shape)


def _has_room(values: NDArray[Any], new: NDArray[Any], count: int) -> bool:
    return len(values) == count and all(
        has >= needed for has, needed in zip(values.shape[1:], new.shape[1:], strict=True)
    )


def _enlarged(values: NDArray[Any], new: NDArray[Any], count: int) -> NDArray[Any]:
    """A copy of some sources with room for `count` sources as long as the new ones."""
    pairs = zip(values.shape[1:], new.shape[1:], strict=True)
    larger: NDArray[Any] = np.zeros((count, *(max(pair) for pair in pairs)), new.dtype)
    larger[tuple(slice(0, size) for size in values.shape)] = values
    return larger


def _round_up(length: int) -> int:
    return -(-length // CAPACITY_STEP) * CAPACITY_STEP

"""Slots: the states that a decoder carries from step to step, one row per sequence.

A slot belongs to one request. It has one row, or one per beam of a search:

    beams = 2          ◄── capacity ──►
    slot 0   row 0     x x x x x x . . .     lengths[0] = 6
             row 1     x x x x . . . . .     lengths[1] = 4
    slot 1   row 2     . . . . . . . . .     lengths[2] = 0
             row 3     . . . . . . . . .     lengths[3] = 0

There are three kinds of state, named by how they are updated:

* `append`: grows by each token, like a KV cache. The kernel writes new tokens in place, so input
  and output are one buffer, and rewinding only changes a length. Capacity grows in steps, with a
  copy each time; in reserved address space it is the whole context from the beginning.
* `replace`: has a fixed size, like the state of a recurrent layer. A graph may read the old value
  after writing the new one, so input and output are two buffers that take turns. A row that took
  no part in a step keeps its old value, whatever the graph wrote.
* `source`: computed once per slot, by the encoder, and only read.

States lie in the memory of a device: `HostStates` on the CPU, `DeviceStates` on a GPU. Sources and
snapshots are arrays of the host everywhere. Does not know which tokens the rows hold.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.buffers import Buffer, Layout, Snapshot
from ortolan.runtime.engine.host_states import HostStates, along, layout
from ortolan.runtime.errors import ContextLengthError, InputError

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State
    from ortolan.runtime.engine.device_states import DeviceStates

__all__ = ["CAPACITY_STEP", "Buffer", "Encoded", "Slots", "Snapshot"]

CAPACITY_STEP = 256
"""Initial capacity in tokens; later ones are multiples of it."""

GROWTH = 1.5
"""Factor between capacities: copying stays a constant share of the work, waste below half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Encoded sources that a decoder reads.

    Attributes:
        lengths: valid tokens of each source, int32 `(sources,)`.
        states: one tensor per `source` state, in the order of the manifest.
    """

    lengths: NDArray[np.int32]
    states: tuple[NDArray[Any], ...]


class Slots:
    """The states of a number of slots, each with one row per beam.

    Args:
        states: states of the manifest.
        count: number of slots.
        beams: rows per slot; they are adjacent.
        context_length: maximum tokens per row.
        identities: fingerprint of the bundle, then of the bundle with each of its adapters;
            snapshots of others are rejected.
        reserved: keep growing states in reserved address space, where the system has it. They then
            never move, and a released slot returns its memory, but each page costs a moment when
            first written. Otherwise they are in large pages, and keep them.
        place: creates the states on a device.

    Attributes:
        lengths: valid tokens of each row.
        adapters: number of each row's adapter, 0 for none, int64; graphs are bound to it.
        context_length: maximum tokens per row.
        replaces: whether any state is replaced; if not, rows can be rewound.
        keeps: whether a released slot keeps its memory and its contents.
    """

    def __init__(
        self,
        states: "tuple[State, ...]",
        *,
        count: int,
        context_length: int,
        beams: int = 1,
        identities: Sequence[str] = ("",),
        reserved: bool = False,
        place: "Callable[..., HostStates | DeviceStates]" = HostStates,
    ) -> None:
        self.keeps = False
        self.count, self.beams = count, beams
        self.lengths = [0] * (count * beams)
        self.adapters = np.zeros(count * beams, np.int64)
        self._identities = identities
        self.context_length = context_length
        self._states = tuple(state for state in states if state.update != "source")
        self._source_states = tuple(state for state in states if state.update == "source")
        self._fixed = [state for state in self._states if state.update == "replace"]
        self.replaces = len(self._fixed) > 0
        self._held = place(
            self._states,
            rows=count * beams,
            capacity=min(CAPACITY_STEP, context_length),
            reserve_to=context_length if reserved else None,
        )
        self._source: Encoded | None = None
        self._sourced: set[int] = set()  # slots whose source is in use

    @property
    def capacity(self) -> int:
        """Tokens that each row has room for."""
        return self._held.capacity

    def identity(self, *, row: int = 0) -> str:
        """Fingerprint of what computes a row: the bundle, or the bundle with an adapter."""
        return self._identities[int(self.adapters[row])]

    @property
    def turn(self) -> int:
        """Which of the two buffers of replaced states is read, 0 or 1."""
        return self._held.turn

    # --- what a graph is bound to -----------------------------------------------------------------

    def bound(self, rows: slice) -> "Iterator[tuple[State, Any, Any]]":
        """Yield each written state with its input buffer and its output buffer, for some rows."""
        yield from self._held.bound(rows)

    def around(self, rows: slice, call: Callable[[], None]) -> Callable[[], None]:
        """Return a call that makes this one on the states of some rows, wherever they lie."""
        return self._held.around(rows, call)

    def sources(self, slots: slice) -> Encoded | None:
        """Return what the decoder reads of the sources of some slots."""
        if self._source is None:
            return None
        states = tuple(state[slots] for state in self._source.states)
        return Encoded(lengths=self._source.lengths[slots], states=states)

    def take_over(self, rows: Sequence[int]) -> None:
        """Adopt what a step wrote to the replaced states of the rows that took part in it."""
        if not self.replaces:
            return
        part = set(rows)
        if all(row in part for row, length in enumerate(self.lengths) if length > 0):
            self._held.swap()
        else:
            self._held.adopt(rows)

    def begin(self, rows: Sequence[int]) -> None:
        """Zero the replaced states of rows that hold no tokens yet."""
        empty = [row for row in rows if self.lengths[row] == 0] if self.replaces else []
        if empty:
            self._held.clear(empty)

    # --- lengths and memory -----------------------------------------------------------------------

    def check(self, length: int) -> None:
        """Check that rows of this length fit into the context.

        Raises:
            ContextLengthError: they do not.
        """
        if length > self.context_length:
            raise ContextLengthError(
                f"The context holds at most {self.context_length} tokens, got {length}. "
                "Use a shorter prompt or fewer new tokens."
            )

    def reserve(self, length: int) -> None:
        """Make room for rows of this length. Buffers move when the capacity changes.

        Raises:
            ContextLengthError: the length exceeds the context.
            MemoryError: there is no memory; nothing has changed.
        """
        self.check(length)
        if length <= self.capacity:
            return
        grown = _round_up(max(length, int(self.capacity * GROWTH)))
        self._held.grow(min(grown, self.context_length), max(self.lengths))

    def release(self, slot: int) -> None:
        """Forget all tokens of a slot; its memory is reused, or returned to the system."""
        rows = slice(slot * self.beams, (slot + 1) * self.beams)
        self.lengths[rows] = [0] * self.beams
        self._sourced.discard(slot)
        if not self.keeps:
            self._held.release(rows)

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Forget the tokens of a row after the first `length`.

        Raises:
            InputError: the row is shorter, or the model has a state that cannot be rewound.
        """
        if not 0 <= length <= self.lengths[row]:
            raise InputError(
                f"rewind: the length must be 0 to {self.lengths[row]}, the tokens so far "
                f"(got {length})."
            )
        if 0 < length < self.lengths[row] and self._fixed:
            raise InputError(
                f"rewind: the state {self._fixed[0].name!r} is replaced at every "
                "step and cannot be rewound. Rewind to 0, or restore a snapshot."
            )
        self.lengths[row] = length

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the contents, lengths and adapters of some rows to others, all at once.

        Args:
            sources: rows to read, before any is written.
            targets: rows to write, as many.
        """
        lengths = [self.lengths[row] for row in sources]
        self._held.copy_rows(sources, targets, max(lengths))
        self.adapters[list(targets)] = self.adapters[list(sources)]
        for row, length in zip(targets, lengths, strict=True):
            self.lengths[row] = length

    def move(self, slot: int, to: int) -> None:
        """Move a slot, with its source, to another one, and release it."""
        beams = range(self.beams)
        self.copy_rows(
            [slot * self.beams + beam for beam in beams], [to * self.beams + beam for beam in beams]
        )
        self.release(slot)
        if self._source is not None:
            self._sourced.add(to)
            self._source.lengths[to] = self._source.lengths[slot]
            for values in self._source.states:
                values[to] = values[slot]

    def put_sources(self, slots: Sequence[int], encoded: Encoded) -> None:
        """Set the sources of these slots, in this order."""
        if list(slots) == list(range(self.count)):
            self._source = encoded  # every slot gets a new one: nothing to copy
            self._sourced.update(slots)
            return
        # the longest source pads all others, so a new start forgets earlier ones
        held = self._source if self._sourced else None
        self._sourced.update(slots)
        if held is None:
            empty = tuple(values[:0] for values in encoded.states)
            held = Encoded(lengths=np.ones(self.count, np.int32), states=empty)
        states = []
        for state, values, new in zip(
            self._source_states, held.states, encoded.states, strict=True
        ):
            if not _has_room(values, new, self.count):
                values = _enlarged(values, new, self.count)
            axis = state.shape.index("source")
            for index, slot in enumerate(slots):
                values[slot] = 0
                values[slot][along(state, "source", slice(0, new.shape[axis]))[1:]] = new[index]
            states.append(values)
        held.lengths[list(slots)] = encoded.lengths
        self._source = Encoded(lengths=held.lengths, states=tuple(states))

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self, *, row: int = 0) -> Snapshot:
        """Copy the valid part of a row."""
        return self.view(row=row).copy()

    def view(self, *, row: int = 0, start: int = 0, end: int | None = None) -> Snapshot:
        """Return tokens of a row, on the CPU without copying: valid until the row changes.

        Replaced states have their current values, whatever `end` says.
        """
        end = self.lengths[row] if end is None else end
        buffers = self._held.read(row, start, end)
        identity = self.identity(row=row)
        return Snapshot(identity=identity, length=end - start, buffers=buffers)

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Replace the contents of a row with a snapshot of any slots of the same bundle.

        Raises:
            InputError: the snapshot belongs to another bundle or adapter, or has other states.
            ContextLengthError: the snapshot exceeds the context.
            MemoryError: there is no memory; nothing has changed.
        """
        self._put(snapshot, row, 0)

    def extend(self, snapshot: Snapshot, *, row: int) -> None:
        """Append a snapshot to the tokens of a row. Raises the same as `restore`."""
        self._put(snapshot, row, self.lengths[row])

    def layout(self, length: int) -> list[Layout]:
        """Return the shape and type of each buffer of a snapshot of `length` tokens."""
        return [layout(state, 1, length) for state in self._states]

    @contextmanager
    def unchanged_on_error(self, *, row: int = 0) -> Iterator[None]:
        """Undo what was appended to a row if the block raises."""
        length = self.lengths[row]
        replaced = self._held.replaced(row)
        try:
            yield
        except BaseException:
            self.lengths[row] = length
            self._held.put_replaced(row, replaced)
            raise

    def _put(self, snapshot: Snapshot, row: int, start: int) -> None:
        layout = [(buffer.shape, buffer.dtype) for buffer in snapshot.buffers]
        identity = self.identity(row=row)
        if snapshot.identity != identity or layout != self.layout(snapshot.length):
            raise InputError(
                "restore: this snapshot is of another bundle or adapter. "
                "Restore it with the model and the adapter that it was taken from."
            )
        end = start + snapshot.length
        self.reserve(end)
        self._held.write(row, start, snapshot.buffers, snapshot.length)
        self.lengths[row] = end


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

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
  copy each time; in reserved address space it is the whole context from the beginning. States
  with a window hold only the last tokens (`windows.py`), so a row can only go back that far.
* `replace`: has a fixed size, like the state of a recurrent layer. A graph may read the old value
  after writing the new one, so input and output are two buffers that take turns. A row that took
  no part in a step keeps its old value, whatever the graph wrote.
* `source`: computed once per slot, by the encoder, and only read.

States lie in the memory of a device: `HostStates` on the CPU, `DeviceStates` on a GPU. Sources and
snapshots are arrays of the host everywhere. Does not know which tokens the rows hold.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortolan.runtime.engine.device_states import Copier, DeviceStates
from ortolan.runtime.engine.host_states import HostStates, Layout, Snapshot, layout
from ortolan.runtime.engine.pictures import Shifts
from ortolan.runtime.engine.sources import Sources
from ortolan.runtime.engine.windows import window_of
from ortolan.runtime.errors import ContextLengthError, InputError

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

CAPACITY_STEP = 256
"""Initial capacity in tokens; later ones are multiples of it."""

GROWTH = 1.5
"""Factor between capacities: copying stays a constant share of the work, waste below half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Everything besides growing states that takes a row back to an earlier length.

    Attributes:
        place: start and first token of its windows.
        windows: states with a window; `None` if the row keeps what it needs of them.
    """

    length: int
    replaced: Any
    place: tuple[int, int]
    windows: Any


class Slots:
    """The states of a number of slots, each with one row per beam.

    Attributes:
        held: the states that graphs are bound to.
        sources: what the decoder reads of the source of each slot.
        lengths: valid tokens of each row.
        adapters: number of each row's adapter, 0 for none, int64; graphs are bound to it.
        windows: where the tokens of each row begin in states with a window.
        shifts: images of each row that take fewer positions than places.
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
        min_call_tokens: int = 1,
        identities: Sequence[str] = ("",),
        reserved: bool = False,
        copier: Copier | None = None,
    ) -> None:
        self.keeps = False
        self.count, self.beams = count, beams
        self.lengths = [0] * (count * beams)
        self.adapters = np.zeros(count * beams, np.int64)
        self._identities = identities
        self.context_length = context_length
        self._states = tuple(state for state in states if state.update != "source")
        self._fixed = [state for state in self._states if state.update == "replace"]
        self.replaces = len(self._fixed) > 0
        window = window_of(self._states, context_length, min_call_tokens=min_call_tokens)
        self.shifts = Shifts(count * beams)
        rows, capacity = count * beams, min(CAPACITY_STEP, context_length)
        self._host: HostStates | None = None  # a device has no windows, and reserves no addresses
        self.held: HostStates | DeviceStates
        if copier is not None:
            self.held = DeviceStates(copier, self._states, rows=rows, capacity=capacity)
        else:
            self.held = self._host = HostStates(
                self._states,
                rows=rows,
                capacity=capacity,
                reserve_to=context_length if reserved else None,
                window=window,
            )
        self.windows = self.held.windows
        self.sources = Sources((s for s in states if s.update == "source"), count)

    @property
    def capacity(self) -> int:
        """Tokens that each row has room for."""
        return self.held.capacity

    def identity(self, *, row: int = 0) -> str:
        """Fingerprint of what computes a row: the bundle, or the bundle with an adapter."""
        return self._identities[int(self.adapters[row])]

    # --- calls of the model -----------------------------------------------------------------------

    def take_over(self, rows: Sequence[int]) -> None:
        """Adopt what a step wrote to the replaced states of the rows that took part in it."""
        if not self.replaces:
            return
        part = set(rows)
        if all(row in part for row, length in enumerate(self.lengths) if length > 0):
            self.held.swap()
        else:
            self.held.adopt(rows)

    def begin(self, rows: Sequence[int]) -> None:
        """Zero the replaced states of rows that hold no tokens yet."""
        empty = [row for row in rows if self.lengths[row] == 0] if self.replaces else []
        if empty:
            self.held.clear(empty)

    def slide_windows(self, rows: Iterable[int]) -> None:
        """Slide the windows of rows that are used up, before the next call computes them."""
        if self._host is not None:
            for row in rows:
                self._host.slide(row, self.lengths[row])

    # --- lengths and memory -----------------------------------------------------------------------

    def reserve(self, length: int) -> None:
        """Make room for rows of this length. Buffers move when the capacity changes."""
        if length <= self.capacity:
            return
        if length > self.context_length:
            raise ContextLengthError(
                f"The context holds at most {self.context_length} tokens, got {length}. "
                "Use a shorter prompt or fewer new tokens."
            )
        grown = max(length, int(self.capacity * GROWTH))
        capacity = -(-grown // CAPACITY_STEP) * CAPACITY_STEP
        self.held.grow(min(capacity, self.context_length), max(self.lengths))

    def release(self, slot: int) -> None:
        """Forget all tokens of a slot; its memory is reused, or returned to the system."""
        rows = slice(slot * self.beams, (slot + 1) * self.beams)
        self.lengths[rows] = [0] * self.beams
        self.sources.release(slot)
        if not self.keeps:
            for row in range(rows.start, rows.stop):
                self.windows.put(row, 0, 0)
            if self._host is not None:
                self._host.release(rows)

    def rewind(self, length: int, *, row: int = 0) -> None:
        """Forget the tokens of a row after the first `length`."""
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
        if length == 0:
            self.windows.put(row, 0, 0)
        elif length < self.windows.least(row):
            raise InputError(
                "rewind: layers of this model keep only the last tokens, which allow a length of "
                f"{self.windows.least(row)} or more (got {length}). Rewind to 0, or restore a "
                "snapshot."
            )
        self.lengths[row] = length

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the contents, lengths and adapters of some rows to others, all at once."""
        lengths = [self.lengths[row] for row in sources]
        self.held.copy_rows(sources, targets, max(lengths))
        self.adapters[list(targets)] = self.adapters[list(sources)]
        self.windows.copy(sources, targets)
        self.shifts.copy(sources, targets)
        for row, length in zip(targets, lengths, strict=True):
            self.lengths[row] = length

    def move(self, slot: int, to: int) -> None:
        """Move a slot, with its source, to another one, and release it."""
        beams = range(self.beams)
        self.copy_rows(
            [slot * self.beams + beam for beam in beams], [to * self.beams + beam for beam in beams]
        )
        self.release(slot)
        self.sources.move(slot, to)

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self, *, row: int = 0) -> Snapshot:
        """Copy the valid part of a row."""
        return self.view(row=row).copy()

    def view(self, *, row: int = 0, start: int = 0, end: int | None = None) -> Snapshot:
        """Return tokens of a row, on the CPU without copying: valid until the row changes.

        Replaced states have their current values, whatever `end` says. Of states with a window, it
        has the last tokens only: all of them, if they are at most `GRID` and `holds` says so.
        """
        end = self.lengths[row] if end is None else end
        windowed = self.windows.slots(row, start, end)
        return Snapshot(
            identity=self.identity(row=row),
            length=end - start,
            buffers=self.held.read(row, start, end),
            windowed=None if windowed is None else windowed.stop - windowed.start,
            shifts=self.shifts.within(start, end, row=row),
        )

    def holds(self, token: int, *, row: int = 0) -> bool:
        """Whether a row has all states of a token, those with a window included."""
        return token >= self.windows.place(row)[1]

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Replace the contents of a row with a snapshot of any slots of the same bundle."""
        self._put(snapshot, row, 0)

    def extend(self, snapshot: Snapshot, *, row: int) -> None:
        """Append a snapshot to the tokens of a row. Raises the same as `restore`."""
        self._put(snapshot, row, self.lengths[row])

    def layout(self, length: int, windowed: int | None = None) -> list[Layout]:
        """Return the shape and type of each buffer of a snapshot of `length` tokens."""
        return [
            layout(state, 1, length if state.window is None or windowed is None else windowed)
            for state in self._states
        ]

    def windowed_of(self, layouts: Sequence[Layout]) -> int | None:
        """Tokens that states with a window have in a snapshot of these layouts; `None` for all."""
        if self.windows.window is None:
            return None
        for state, (shape, _) in zip(self._states, layouts, strict=False):
            if state.window is not None and len(shape) == len(state.shape):
                return shape[state.shape.index("capacity")]
        return None

    @contextmanager
    def unchanged_on_error(self, new_tokens: int, *, row: int = 0) -> Iterator[None]:
        """Undo what was appended to a row, at most `new_tokens`, if the block raises."""
        mark = self.mark(new_tokens, row=row)
        try:
            yield
        except BaseException:
            self.go_back(mark, row=row)
            raise

    def mark(self, new_tokens: int | None = None, *, row: int = 0) -> "Mark":
        """Copy what a row needs to go back to its present length."""
        length, window = self.lengths[row], self.windows.window
        loses = window is not None and (
            new_tokens is None or window.start(length + new_tokens) > window.needed(length)
        )
        return Mark(
            length=length,
            replaced=self.held.replaced(row),
            place=self.windows.place(row),
            windows=self._host.windowed(row) if self._host is not None and loses else None,
        )

    def go_back(self, mark: "Mark", *, row: int = 0) -> None:
        """Take a row back to a mark, whose tokens it still begins with."""
        self.lengths[row] = mark.length
        self.held.put_replaced(row, mark.replaced)
        if self._host is not None and mark.windows is not None:
            self.windows.put(row, *mark.place)
            self._host.put_windowed(row, mark.windows)

    def _put(self, snapshot: Snapshot, row: int, start: int) -> None:
        if snapshot.identity != self.identity(row=row):
            raise InputError(
                "restore: this snapshot is of another bundle or adapter. "
                "Restore it with the model and the adapter that it was taken from."
            )
        self.reserve(start + snapshot.length)
        self.held.write(row, start, snapshot)
        self.shifts.add(snapshot.shifts, start, row=row)
        self.lengths[row] = start + snapshot.length

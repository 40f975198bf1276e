"""Sources: what an encoder computed, which the decoder only reads; one per slot."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.host_states import along

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Sources that a decoder reads: their lengths, int32, and their states in order."""

    lengths: NDArray[np.int32]
    states: tuple[NDArray[Any], ...]


class Sources:
    """The sources of a number of slots, as arrays of the host."""

    def __init__(self, states: "Iterable[State]", count: int) -> None:
        self._states, self._count = tuple(states), count
        self._held: Encoded | None = None
        self._in_use: set[int] = set()

    def of(self, slots: slice) -> Encoded | None:
        """Return the sources of some slots; `None` if there are none."""
        if self._held is None:
            return None
        states = tuple(state[slots] for state in self._held.states)
        return Encoded(lengths=self._held.lengths[slots], states=states)

    def put(self, slots: Sequence[int], encoded: Encoded) -> None:
        """Set the sources of these slots, in this order."""
        if list(slots) == list(range(self._count)):
            self._held = encoded  # every slot gets a new one: nothing to copy
            self._in_use.update(slots)
            return
        # the longest source pads all others, so a new start forgets earlier ones
        held = self._held if self._in_use else None
        self._in_use.update(slots)
        if held is None:
            empty = tuple(values[:0] for values in encoded.states)
            held = Encoded(lengths=np.ones(self._count, np.int32), states=empty)
        states = []
        for state, values, new in zip(self._states, held.states, encoded.states, strict=True):
            if not _has_room(values, new, self._count):
                values = _enlarged(values, new, self._count)
            axis = state.shape.index("source")
            for index, slot in enumerate(slots):
                values[slot] = 0
                values[slot][along(state, "source", slice(0, new.shape[axis]))[1:]] = new[index]
            states.append(values)
        held.lengths[list(slots)] = encoded.lengths
        self._held = Encoded(lengths=held.lengths, states=tuple(states))

    def release(self, slot: int) -> None:
        """Forget the source of a slot."""
        self._in_use.discard(slot)

    def move(self, slot: int, to: int) -> None:
        """Copy the source of a slot to another one."""
        if self._held is not None:
            self._in_use.add(to)
            self._held.lengths[to] = self._held.lengths[slot]
            for values in self._held.states:
                values[to] = values[slot]


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

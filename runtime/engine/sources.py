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
            held_states = _with_room(values, new, self._count)
            axis = state.shape.index("source")
            for index, slot in enumerate(slots):
                held_states[slot] = 0
                part = along(state, "source", slice(0, new.shape[axis]))[1:]
                held_states[slot][part] = new[index]
            states.append(held_states)
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


def _with_room(values: NDArray[Any], new: NDArray[Any], count: int) -> NDArray[Any]:
    """Some sources, or a copy of them with room for `count` sources as long as the new ones."""
    shape = (count, *map(max, values.shape[1:], new.shape[1:]))
    if values.shape == shape:
        return values
    larger: NDArray[Any] = np.zeros(shape, new.dtype)
    larger[tuple(slice(0, size) for size in values.shape)] = values
    return larger

"""Slots of each kind of state, filled with numbers."""

import numpy as np

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.host_states import Buffer
from ortolan.runtime.engine.slots import Slots

KEY = State(
    name="key",
    input="past_key",
    output="present_key",
    shape=("batch", 2, "capacity", 4),
    dtype="float32",
    update="append",
)
VALUE = State(
    name="value",
    input="past_value",
    output="present_value",
    shape=("batch", "capacity", 3),
    dtype="float16",
    update="append",
)
SUM = State(
    name="sum",
    input="past_sum",
    output="present_sum",
    shape=("batch", 5),
    dtype="float32",
    update="replace",
)


def buffers(slots: Slots, row: int | None = None) -> list[Buffer]:
    """The input buffers of all rows, or of one."""
    rows = slice(None) if row is None else slice(row, row + 1)
    return [read for _, read, _ in slots.held.bound(rows)]


def filled(slots: Slots, *lengths: int) -> Slots:
    """Fill every row with numbers that depend on their position."""
    slots.reserve(max(lengths))
    for buffer in buffers(slots):
        buffer[...] = np.arange(buffer.size).reshape(buffer.shape) % 1009
    slots.lengths[:] = lengths
    return slots

"""Slots whose states lie in reserved address space."""

import sys

import numpy as np
import pytest
from tests.runtime.engine.test_slots import KEY, SUM, VALUE, buffers, filled

from ortolan.runtime.engine import buffers as engine_buffers
from ortolan.runtime.engine.slots import CAPACITY_STEP, Slots
from ortolan.runtime.errors import ContextLengthError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space of Linux")


def test_reserved_slots_have_room_for_the_context_and_never_move() -> None:
    slots = Slots((KEY, VALUE, SUM), count=2, context_length=5000, reserved=True)
    before = buffers(slots)
    assert slots.capacity == 5000
    filled(slots, 5000, 3)
    for buffer, kept in zip(buffers(slots), before, strict=True):
        assert np.shares_memory(buffer, kept)
    with pytest.raises(ContextLengthError):
        slots.reserve(5001)


def test_a_reserved_slot_that_is_released_is_zero_and_its_neighbours_are_as_they_were() -> None:
    slots = filled(
        Slots((KEY, VALUE, SUM), count=3, beams=2, context_length=999, reserved=True), *[999] * 6
    )
    before = [[buffer.copy() for buffer in buffers(slots, row)] for row in range(6)]
    slots.release(1)
    assert slots.lengths == [999, 999, 0, 0, 999, 999]
    for row in range(6):
        key, value, _ = buffers(slots, row)
        if row in (2, 3):
            assert not key.any()
            assert not value.any()
        else:
            np.testing.assert_array_equal(key, before[row][0])
            np.testing.assert_array_equal(value, before[row][1])


def test_where_nothing_can_be_reserved_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_buffers, "reserved", lambda size: None)
    slots = Slots((KEY, VALUE), count=2, context_length=5000, reserved=True)
    assert slots.capacity == CAPACITY_STEP
    filled(slots, 300, 20)
    slots.release(0)
    assert slots.lengths == [0, 20]

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.slot_states import KEY, SUM, VALUE, buffers, filled

from ortolan.runtime.engine import buffers as engine_buffers
from ortolan.runtime.engine.buffers import AddressSpace, reserved
from ortolan.runtime.engine.slots import CAPACITY_STEP, Slots
from ortolan.runtime.errors import ContextLengthError

PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space of Linux")


def space_of(size: int) -> AddressSpace:
    space = reserved(size)
    assert space is not None
    return space


def pages_in_memory(array: NDArray[Any]) -> int:
    """Number of resident pages of an array."""
    start = array.ctypes.data // PAGE * PAGE
    pages = -(-(array.ctypes.data + array.nbytes - start) // PAGE)
    resident = np.zeros(pages, np.uint8)
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert mincore(start, pages * PAGE, resident.ctypes.data) == 0
    return int((resident & 1).sum())


def test_more_than_the_physical_memory_can_be_reserved() -> None:
    array = space_of(1 << 42).array
    array[1 << 41] = 7
    assert array[1 << 41] == 7
    assert not array[:PAGE].any()


def test_only_written_pages_take_memory() -> None:
    array = space_of(1000 * PAGE).array
    array[::PAGE][100:120] = 1
    assert pages_in_memory(array) == 20


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 40 * PAGE),
        (3, 37 * PAGE + 5),
        (5 * PAGE + 1, 6 * PAGE - 1),
        (7, 9),
        (4 * PAGE - 1, 7 * PAGE),
    ],
)
def test_returned_memory_reads_as_zeros_and_the_rest_is_unchanged(start: int, end: int) -> None:
    space = space_of(40 * PAGE)
    space.array[:] = 9
    space.give_back(space.array[start:end])
    assert not space.array[start:end].any()
    assert (space.array[:start] == 9).all()
    assert (space.array[end:] == 9).all()


def test_returned_memory_is_not_resident() -> None:
    space = space_of(40 * PAGE)
    space.array[:] = 9
    space.give_back(space.array[10 * PAGE + 8 : 30 * PAGE - 8])
    assert pages_in_memory(space.array[11 * PAGE : 29 * PAGE]) == 0
    assert pages_in_memory(space.array) == 22


def test_a_system_without_room_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reserved(1 << 60) is None
    assert reserved(1 << 70) is None
    assert reserved(0) is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert reserved(PAGE) is None


def test_the_memory_outlives_the_object() -> None:
    array = space_of(Path(__file__).stat().st_size).array
    array[5] = 3
    assert array[5] == 3


def test_reserved_slots_have_room_for_the_context_and_never_move() -> None:
    slots = Slots((KEY, VALUE, SUM), count=2, context_length=5000, reserved=True)
    before = buffers(slots)
    assert slots.capacity == 5000
    filled(slots, 5000, 3)
    for buffer, old in zip(buffers(slots), before, strict=True):
        assert np.shares_memory(buffer, old)
    with pytest.raises(ContextLengthError):
        slots.reserve(5001)


def test_releasing_a_reserved_slot_zeroes_it_and_not_its_neighbors() -> None:
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


def test_slots_grow_if_nothing_can_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_buffers, "reserved", lambda size: None)
    slots = Slots((KEY, VALUE), count=2, context_length=5000, reserved=True)
    assert slots.capacity == CAPACITY_STEP
    filled(slots, 300, 20)
    slots.release(0)
    assert slots.lengths == [0, 20]

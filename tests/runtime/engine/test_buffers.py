"""Address space for states: memory is taken when written, and returned when released."""

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.slot_states import KEY, SUM, VALUE, buffers, filled

from ortolan.runtime.engine import host_states
from ortolan.runtime.engine.host_states import AddressSpace, reserved
from ortolan.runtime.engine.slots import CAPACITY_STEP, Slots

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


def test_more_than_the_physical_memory_can_be_reserved_and_only_written_pages_take_it() -> None:
    array = space_of(1 << 42).array  # the memory outlives the object
    array[1 << 41] = 7
    assert array[1 << 41] == 7
    array[: 1000 * PAGE : PAGE][100:120] = 1
    assert pages_in_memory(array[: 1000 * PAGE]) == 20


@pytest.mark.parametrize(
    ("start", "end", "resident"),
    [
        (0, 40 * PAGE, 0),
        (3, 37 * PAGE + 5, 4),
        (5 * PAGE + 1, 6 * PAGE - 1, 40),
        (7, 9, 40),
        (4 * PAGE - 1, 7 * PAGE, 37),
    ],
)
def test_returned_memory_reads_as_zeros_and_the_rest_is_unchanged(
    start: int, end: int, resident: int
) -> None:
    space = space_of(40 * PAGE)
    space.array[:] = 9
    space.give_back(space.array[start:end])
    assert pages_in_memory(space.array) == resident
    assert not space.array[start:end].any()
    assert (space.array[:start] == 9).all()
    assert (space.array[end:] == 9).all()


def test_a_system_without_room_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [reserved(size) for size in (1 << 60, 1 << 70, 0)] == [None] * 3
    monkeypatch.setattr(sys, "platform", "win32")
    assert reserved(PAGE) is None


def test_releasing_a_reserved_slot_zeroes_it_and_not_its_neighbors() -> None:
    slots = Slots((KEY, VALUE, SUM), count=3, beams=2, context_length=999, reserved=True)
    place = buffers(slots)[0]
    filled(slots, *[999] * 6)
    assert np.shares_memory(buffers(slots)[0], place), "reserved slots never move"
    before = [[buffer.copy() for buffer in buffers(slots, row)] for row in range(6)]
    slots.release(1)
    assert slots.lengths == [999, 999, 0, 0, 999, 999]
    for row in range(6):
        key, value, _ = buffers(slots, row)
        for got, want in ((key, before[row][0]), (value, before[row][1])):
            np.testing.assert_array_equal(got, np.zeros_like(want) if row in (2, 3) else want)


def test_slots_grow_if_nothing_can_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_states, "reserved", lambda size: None)
    slots = Slots((KEY, VALUE), count=2, context_length=5000, reserved=True)
    assert slots.capacity == CAPACITY_STEP
    filled(slots, 300, 20)
    slots.release(0)
    assert slots.lengths == [0, 20]

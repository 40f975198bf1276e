from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.buffers import Buffer
from ortolan.runtime.engine.slots import CAPACITY_STEP, Encoded, Slots
from ortolan.runtime.errors import ContextLengthError, InputError

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
    return [read for _, read, _ in slots.bound(rows)]


def filled(slots: Slots, *lengths: int) -> Slots:
    """Fill every row with numbers that depend on their position."""
    slots.reserve(max(lengths))
    for buffer in buffers(slots):
        buffer[...] = np.arange(buffer.size).reshape(buffer.shape) % 1009
    slots.lengths[:] = lengths
    return slots


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 5000))
def test_capacity_is_a_multiple_of_the_step_or_the_context_and_never_far_above_the_need(
    lengths: list[int], context: int
) -> None:
    slots = Slots((VALUE,), count=1, context_length=context)
    assert slots.capacity == min(CAPACITY_STEP, context)
    longest = 1
    for length in lengths:
        if length > context:
            with pytest.raises(ContextLengthError, match=f"{context}"):
                slots.reserve(length)
            continue
        slots.reserve(length)
        longest = max(longest, length)
        assert longest <= slots.capacity <= max(longest * 1.5 + CAPACITY_STEP, CAPACITY_STEP)
        assert slots.capacity % CAPACITY_STEP == 0 or slots.capacity == context
        assert buffers(slots)[0].shape == (1, slots.capacity, 3)


@pytest.mark.parametrize(
    ("length", "capacity"), [(256, 256), (257, 512), (513, 768), (769, 1280), (3000, 3072)]
)
def test_capacity_grows_at_the_boundaries(length: int, capacity: int) -> None:
    slots = Slots((KEY,), count=1, context_length=4096)
    for step in (256, 512, 768, 1280):
        if step < length:
            slots.reserve(step)
    slots.reserve(length)
    assert slots.capacity == capacity


def test_growing_keeps_the_valid_part_of_every_row_and_every_state() -> None:
    slots = filled(Slots((KEY, VALUE, SUM), count=3, context_length=2000), 256, 1, 77)
    before = [[buffer.copy() for buffer in buffers(slots, row)] for row in range(3)]
    slots.reserve(257)
    assert slots.capacity == 512
    assert not buffers(slots)[0][:, :, 256:].any()
    for row, length in enumerate(slots.lengths):
        key, value, total = buffers(slots, row)
        np.testing.assert_array_equal(key[:, :, :length], before[row][0][:, :, :length])
        np.testing.assert_array_equal(value[:, :length], before[row][1][:, :length])
        np.testing.assert_array_equal(total, before[row][2])


def test_a_failed_allocation_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = filled(Slots((KEY, VALUE), count=1, context_length=2000), 200)
    before = buffers(slots)

    def fail(*args: object) -> object:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", fail)
    with pytest.raises(MemoryError):
        slots.reserve(300)
    assert slots.capacity == 256
    for buffer, old in zip(buffers(slots), before, strict=True):
        assert np.shares_memory(buffer, old)


def test_a_row_is_a_contiguous_view_of_the_whole() -> None:
    slots = Slots((KEY, VALUE), count=3, context_length=100)
    for whole, row in zip(buffers(slots), buffers(slots, 1), strict=True):
        assert row.shape == (1, *whole.shape[1:])
        assert row.flags.c_contiguous
        row.fill(7)
        assert (whole[1] == 7).all()
        assert not whole[[0, 2]].any()


def test_rewinding_changes_a_length_and_no_memory() -> None:
    slots = filled(Slots((KEY,), count=2, context_length=100), 50, 60)
    (buffer,) = buffers(slots)
    before = buffer.copy()
    slots.rewind(10, row=1)
    assert slots.lengths == [50, 10]
    assert np.shares_memory(buffers(slots)[0], buffer)
    np.testing.assert_array_equal(buffer, before)
    for length in (-1, 51):
        with pytest.raises(InputError, match="0 to 50"):
            slots.rewind(length)


def test_replaced_states_cannot_be_rewound_but_cleared() -> None:
    slots = filled(Slots((KEY, SUM), count=2, context_length=100), 50, 60)
    with pytest.raises(InputError, match="'sum'"):
        slots.rewind(49)
    slots.rewind(50)
    assert slots.lengths == [50, 60]
    slots.rewind(0)
    assert slots.lengths == [0, 60]
    slots.begin([0, 1])
    assert not buffers(slots, 0)[1].any()
    assert buffers(slots, 1)[1].any()


def test_a_snapshot_is_a_copy_and_restores_into_another_row_of_a_smaller_cache() -> None:
    slots = filled(Slots((KEY, VALUE, SUM), count=2, context_length=1000), 50, 600)
    snapshot = slots.snapshot(row=1)
    assert [buffer.shape for buffer in snapshot.buffers] == [(1, 2, 600, 4), (1, 600, 3), (1, 5)]
    expected = [buffer.copy() for buffer in snapshot.buffers]
    for buffer in buffers(slots):
        buffer.fill(1)
    other = Slots((KEY, VALUE, SUM), count=3, context_length=700)
    other.restore(snapshot, row=2)
    assert other.lengths == [0, 0, 600]
    for got, want in zip(other.snapshot(row=2).buffers, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("cuts", [(0, 60), (0, 20, 60), (0, 1, 2, 59, 60)])
def test_a_row_extended_part_by_part_equals_the_original(cuts: tuple[int, ...]) -> None:
    slots, other = (Slots((KEY, VALUE, SUM), count=3, context_length=400) for _ in range(2))
    filled(slots, 50, 60, 70)
    for start, end in pairwise(cuts):
        other.extend(slots.view(row=1, start=start, end=end).copy(), row=2)
        assert other.lengths == [0, 0, end]
    for got, want in zip(other.view(row=2).buffers, slots.snapshot(row=1).buffers, strict=True):
        np.testing.assert_array_equal(got, want)
    assert not any(buffer[:2].any() for buffer in buffers(other))


def test_a_view_shares_the_memory_of_its_row_and_has_its_layout() -> None:
    slots = filled(Slots((KEY, VALUE, SUM), count=2, context_length=400), 50, 60)
    view = slots.view(row=1, start=20, end=50)
    assert [(buffer.shape, buffer.dtype) for buffer in view.buffers] == slots.layout(30)
    for part, whole in zip(view.buffers, buffers(slots), strict=True):
        assert np.shares_memory(part, whole)
    assert not any(map(np.shares_memory, view.copy().buffers, buffers(slots)))


def test_a_snapshot_beyond_the_context_is_rejected_and_changes_nothing() -> None:
    slots = filled(Slots((KEY,), count=1, context_length=100), 60)
    with pytest.raises(ContextLengthError, match="at most 100 tokens, got 120"):
        slots.extend(slots.snapshot(), row=0)
    assert slots.lengths == [60]
    other = Slots((KEY,), count=1, context_length=50)
    with pytest.raises(ContextLengthError, match="50"):
        other.restore(slots.snapshot())
    assert other.lengths == [0]


@pytest.mark.parametrize(
    ("states", "identity"), [((VALUE,), "one"), ((KEY, KEY), "one"), ((KEY,), "other")]
)
def test_a_snapshot_of_other_states_or_another_bundle_is_rejected(
    states: tuple[State, ...], identity: str
) -> None:
    slots = filled(Slots((KEY,), count=1, context_length=100, identities=("one",)), 10)
    with pytest.raises(InputError, match="another bundle"):
        Slots(states, count=1, context_length=100, identities=(identity,)).restore(slots.snapshot())


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_restores_lengths_and_replaced_states(kind: type[BaseException]) -> None:
    slots = filled(Slots((KEY, SUM), count=1, context_length=1000), 50)
    before = buffers(slots)[1].copy()

    def fail() -> None:
        with slots.unchanged_on_error(1):
            slots.reserve(400)
            slots.lengths[0] = 400
            buffers(slots)[1].fill(9)
            raise kind

    with pytest.raises(kind):
        fail()
    assert slots.lengths == [50]
    np.testing.assert_array_equal(buffers(slots)[1], before)


def test_rows_are_copied_simultaneously_up_to_the_longest() -> None:
    slots = filled(Slots((VALUE, KEY, SUM), count=4, context_length=900), 300, 5, 7, 6)
    before = [buffer.copy() for buffer in buffers(slots)]
    slots.copy_rows([1, 2, 3], [2, 1, 0])
    assert slots.lengths == [6, 7, 5, 6]
    for buffer, old, capacity_axis in zip(buffers(slots), before, (0, 1, None), strict=True):
        for row, source in enumerate([3, 2, 1, 3]):
            valid = (slice(None),) * (capacity_axis or 0) + (slice(0, 7),)
            part = valid if capacity_axis is not None else ()
            np.testing.assert_array_equal(buffer[row][part], old[source][part])
    # what stands behind the longest of the rows that were read stays where it was
    np.testing.assert_array_equal(buffers(slots)[0][0, 7:], before[0][0, 7:])


def test_a_released_slot_forgets_tokens_and_sums_and_keeps_the_memory() -> None:
    slots = filled(Slots((KEY, SUM), count=2, beams=2, context_length=900), 300, 5, 6, 7)
    before = buffers(slots)
    slots.release(0)
    assert slots.lengths == [0, 0, 6, 7]
    slots.begin([0, 1, 2, 3])
    key, total = buffers(slots)
    assert np.shares_memory(key, before[0])
    assert not total[:2].any()
    assert total[2:].any()


# --- states that are replaced -----------------------------------------------------------------


def written(slots: Slots) -> NDArray[Any]:
    """The output buffer of the sum, all rows."""
    return next(out for state, _, out in slots.bound(slice(None)) if state.name == "sum")


def test_buffers_take_turns_where_every_live_row_took_part() -> None:
    slots = filled(Slots((KEY, SUM), count=2, context_length=100), 3, 4)
    key, total = slots.bound(slice(0, 2))
    assert np.shares_memory(key[1], key[2])
    assert not np.shares_memory(total[1], total[2])
    slots = filled(Slots((SUM,), count=3, context_length=100), 3, 4, 0)
    new = written(slots)
    new[...] = [[1], [2], [3]]
    slots.take_over([0, 1])
    assert slots.turn == 1
    assert np.shares_memory(buffers(slots)[0], new)
    slots.take_over([0, 1])
    assert slots.turn == 0


@pytest.mark.parametrize("part", [[0], [1], [0, 2]])
def test_a_row_that_took_no_part_keeps_its_state(part: list[int]) -> None:
    slots = filled(Slots((KEY, SUM), count=3, context_length=100), 3, 4, 5)
    before = buffers(slots)[1].copy()
    written(slots)[...] = -1
    slots.take_over(part)
    after = buffers(slots)[1]
    for row in range(3):
        np.testing.assert_array_equal(after[row], -1 if row in part else before[row])


# --- sources ----------------------------------------------------------------------------------

CROSS = State(
    name="cross",
    input="past_cross",
    output="cross",
    shape=("batch", 2, "source", 3),
    dtype="float32",
    update="source",
)


def encoded(*lengths: int) -> Encoded:
    """Sources of these lengths: each value is the length, padding is 0."""
    values = np.zeros((len(lengths), 2, max(lengths), 3), np.float32)
    for index, length in enumerate(lengths):
        values[index, :, :length] = length
    return Encoded(lengths=np.array(lengths, np.int32), states=(values,))


def held(slots: Slots, slot: int) -> NDArray[Any]:
    """The valid part of a source, after checking that its padding is zero."""
    source = slots.sources(slice(slot, slot + 1))
    assert source is not None
    (values,) = source.states
    length = int(source.lengths[0])
    assert not values[0, :, length:].any()
    valid: NDArray[Any] = values[0, :, :length]
    return valid


def test_sources_for_all_slots_are_not_copied() -> None:
    slots, sources = Slots((KEY, CROSS), count=2, context_length=100), encoded(3, 5)
    slots.put_sources([0, 1], sources)
    source = slots.sources(slice(0, 2))
    assert source is not None
    assert np.shares_memory(source.states[0], sources.states[0])


def test_sources_of_any_lengths_can_be_set_one_by_one() -> None:
    slots = Slots((KEY, CROSS), count=4, beams=2, context_length=100)
    slots.put_sources([0, 1], encoded(3, 5))
    slots.put_sources([2], encoded(9))
    slots.put_sources([0], encoded(2))
    for slot, length in ((0, 2), (1, 5), (2, 9)):
        assert held(slots, slot).shape[1] == length
        assert (held(slots, slot) == length).all()


def test_a_slot_moves_with_its_rows_and_its_source() -> None:
    slots = filled(Slots((KEY, SUM, CROSS), count=3, beams=2, context_length=100), *range(1, 7))
    slots.put_sources([0, 1, 2], encoded(3, 5, 9))
    before = [[buffer.copy() for buffer in buffers(slots, row)] for row in (4, 5)]
    slots.move(2, 0)
    assert slots.lengths == [5, 6, 3, 4, 0, 0]
    assert (held(slots, 0) == 9).all()
    for row, (key, total) in zip((0, 1), before, strict=True):
        valid = slots.lengths[row]
        np.testing.assert_array_equal(buffers(slots, row)[0][:, :, :valid], key[:, :, :valid])
        np.testing.assert_array_equal(buffers(slots, row)[1], total)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.cache import CAPACITY_STEP, Cache
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


def filled(cache: Cache, *lengths: int) -> Cache:
    """Fill every row with numbers that say where they stand."""
    cache.reserve(max(lengths))
    for buffer in cache.buffers():
        buffer[...] = np.arange(buffer.size).reshape(buffer.shape) % 1009
    cache.lengths[:] = lengths
    return cache


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 5000))
def test_capacity_is_a_step_or_the_context_and_never_far_above_what_was_asked_for(
    lengths: list[int], context: int
) -> None:
    cache = Cache((VALUE,), batch=1, context_length=context)
    assert cache.capacity == min(CAPACITY_STEP, context)
    longest = 1
    for length in lengths:
        if length > context:
            with pytest.raises(ContextLengthError, match=f"{context}"):
                cache.reserve(length)
            continue
        cache.reserve(length)
        longest = max(longest, length)
        assert longest <= cache.capacity <= max(longest * 1.5 + CAPACITY_STEP, CAPACITY_STEP)
        assert cache.capacity % CAPACITY_STEP == 0 or cache.capacity == context
        assert cache.buffers()[0].shape == (1, cache.capacity, 3)


@pytest.mark.parametrize(
    ("length", "capacity"), [(256, 256), (257, 512), (513, 768), (769, 1280), (3000, 3072)]
)
def test_capacity_grows_at_the_boundaries(length: int, capacity: int) -> None:
    cache = Cache((KEY,), batch=1, context_length=4096)
    for step in (256, 512, 768, 1280):
        if step < length:
            cache.reserve(step)
    cache.reserve(length)
    assert cache.capacity == capacity


def test_growing_keeps_the_valid_part_of_every_row_and_every_state() -> None:
    cache = filled(Cache((KEY, VALUE, SUM), batch=3, context_length=2000), 256, 1, 77)
    before = [[buffer.copy() for buffer in cache.buffers(row)] for row in range(3)]
    cache.reserve(257)
    assert cache.capacity == 512
    for row, length in enumerate(cache.lengths):
        key, value, total = cache.buffers(row)
        np.testing.assert_array_equal(key[:, :, :length], before[row][0][:, :, :length])
        np.testing.assert_array_equal(value[:, :length], before[row][1][:, :length])
        np.testing.assert_array_equal(total, before[row][2])


def test_what_stands_behind_the_valid_part_of_a_grown_buffer_is_zero() -> None:
    cache = filled(Cache((KEY,), batch=1, context_length=2000), 100)
    cache.reserve(300)
    assert not cache.buffers()[0][:, :, 100:].any()


def test_an_allocation_that_fails_leaves_the_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = filled(Cache((KEY, VALUE), batch=1, context_length=2000), 200)
    before = cache.buffers()
    zeros, calls = np.zeros, []

    def fail_the_second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise MemoryError
        return zeros(*args)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "zeros", fail_the_second)
    with pytest.raises(MemoryError):
        cache.reserve(300)
    assert cache.capacity == 256
    assert [id(buffer) for buffer in cache.buffers()] == [id(buffer) for buffer in before]


def test_a_row_is_a_contiguous_view_of_the_whole() -> None:
    cache = Cache((KEY, VALUE), batch=3, context_length=100)
    for whole, row in zip(cache.buffers(), cache.buffers(1), strict=True):
        assert row.shape == (1, *whole.shape[1:])
        assert row.flags.c_contiguous
        row.fill(7)
        assert (whole[1] == 7).all()
        assert not whole[[0, 2]].any()


def test_rewinding_changes_a_length_and_no_memory() -> None:
    cache = filled(Cache((KEY,), batch=2, context_length=100), 50, 60)
    (buffer,) = cache.buffers()
    before = buffer.copy()
    cache.rewind(10, row=1)
    assert cache.lengths == [50, 10]
    assert cache.buffers()[0] is buffer
    np.testing.assert_array_equal(buffer, before)


@pytest.mark.parametrize("length", [-1, 51])
def test_rewinding_to_where_the_row_never_was_is_an_error(length: int) -> None:
    cache = filled(Cache((KEY,), batch=1, context_length=100), 50)
    with pytest.raises(InputError, match="from 0 to 50"):
        cache.rewind(length)


def test_a_state_of_fixed_size_cannot_be_rewound_but_cleared() -> None:
    cache = filled(Cache((KEY, SUM), batch=2, context_length=100), 50, 60)
    with pytest.raises(InputError, match="'sum'"):
        cache.rewind(49)
    cache.rewind(50)
    assert cache.lengths == [50, 60]
    cache.rewind(0)
    assert cache.lengths == [0, 60]
    assert not cache.buffers(0)[1].any()
    assert cache.buffers(1)[1].any()


def test_a_snapshot_holds_copies_of_the_valid_part() -> None:
    cache = filled(Cache((KEY, VALUE, SUM), batch=2, context_length=300), 50, 60)
    kept = cache.snapshot(row=1)
    assert [buffer.shape for buffer in kept.buffers] == [(1, 2, 60, 4), (1, 60, 3), (1, 5)]
    expected = [buffer.copy() for buffer in kept.buffers]
    for buffer in cache.buffers():
        buffer.fill(1)
    for got, want in zip(kept.buffers, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_snapshot_restores_into_another_row_of_a_smaller_cache() -> None:
    cache = filled(Cache((KEY, VALUE, SUM), batch=2, context_length=1000), 50, 600)
    kept = cache.snapshot(row=1)
    other = Cache((KEY, VALUE, SUM), batch=3, context_length=700)
    other.restore(kept, row=2)
    assert other.lengths == [0, 0, 600]
    for got, want in zip(other.snapshot(row=2).buffers, kept.buffers, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_snapshot_beyond_the_context_is_refused_and_changes_nothing() -> None:
    kept = filled(Cache((KEY,), batch=1, context_length=1000), 600).snapshot()
    other = Cache((KEY,), batch=1, context_length=500)
    with pytest.raises(ContextLengthError, match="500"):
        other.restore(kept)
    assert other.lengths == [0]


def test_a_snapshot_of_other_states_is_refused() -> None:
    kept = filled(Cache((KEY,), batch=1, context_length=100), 10).snapshot()
    for states in ((VALUE,), (KEY, KEY)):
        with pytest.raises(InputError, match="snapshot of the same states"):
            Cache(states, batch=1, context_length=100).restore(kept)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_takes_back_lengths_and_fixed_states(kind: type[BaseException]) -> None:
    cache = filled(Cache((KEY, SUM), batch=1, context_length=1000), 50)
    before = cache.buffers()[1].copy()

    def fail() -> None:
        with cache.unchanged_on_error():
            cache.reserve(400)
            cache.lengths[0] = 400
            cache.buffers()[1].fill(9)
            raise kind

    with pytest.raises(kind):
        fail()
    assert cache.lengths == [50]
    np.testing.assert_array_equal(cache.buffers()[1], before)


def test_rows_are_copied_all_at_once_up_to_the_longest_and_no_further() -> None:
    cache = filled(Cache((VALUE, KEY, SUM), batch=4, context_length=900), 300, 5, 7, 6)
    before = [buffer.copy() for buffer in cache.buffers()]
    cache.copy_rows(np.array([1, 2, 3]), np.array([2, 1, 0]))
    assert cache.lengths == [6, 7, 5, 6]
    for buffer, kept, capacity_axis in zip(cache.buffers(), before, (0, 1, None), strict=True):
        for row, source in enumerate([3, 2, 1, 3]):
            valid = (slice(None),) * (capacity_axis or 0) + (slice(0, 7),)
            part = valid if capacity_axis is not None else ()
            np.testing.assert_array_equal(buffer[row][part], kept[source][part])
    # what stands behind the longest of the rows that were read stays where it was
    np.testing.assert_array_equal(cache.buffers()[0][0, 7:], before[0][0, 7:])


def test_clearing_forgets_tokens_and_sums_and_keeps_the_memory() -> None:
    cache = filled(Cache((KEY, SUM), batch=2, context_length=900), 300, 5)
    key, total = cache.buffers()
    cache.clear()
    assert cache.lengths == [0, 0]
    assert [buffer is kept for buffer, kept in zip(cache.buffers(), (key, total), strict=True)] == [
        True,
        True,
    ]
    assert not total.any()

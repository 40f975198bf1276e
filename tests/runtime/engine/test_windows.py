"""Rows of states with a window: where tokens lie after any order of calls, rewinds and copies."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import tiny_bundle

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.state_file import read_states, write_states
from ortolan.runtime.engine.windows import BACK, Window, row_bytes, sums_in_blocks, window_of
from ortolan.runtime.errors import InputError, StateFileError

CONTEXT = 2000


def state(name: str, *, window: int | None = None, width: int = 128) -> State:
    return State(
        name=name,
        input=f"past.{name}",
        output=f"present.{name}",
        shape=("batch", 1, "capacity", width),
        dtype="float32",
        update="append",
        window=window,
    )


STATES = (state("narrow", window=100), state("whole"))
WINDOW = Window(size=100, step=128, back=128, part=128)


class Written:
    """Slots whose states hold the number of each token, and what rows should hold."""

    def __init__(self, rows: int) -> None:
        self.slots = Slots(STATES, count=rows, context_length=CONTEXT)
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.longest = [0] * rows  # rewinding does not bring back what has left a window
        self._next = 1

    def append(self, row: int, count: int) -> None:
        slots, text = self.slots, self.texts[row]
        slots.reserve(len(text) + count)
        slots.slide_windows([row])
        new = list(range(self._next, self._next + count))
        self._next += count
        for value, (_, buffer, _) in zip(
            (0, 1), slots.held.bound(slice(row, row + 1)), strict=True
        ):
            start = len(text) - (int(slots.windows.starts[row]) if value == 0 else 0)
            assert start + count <= buffer.shape[2] - (buffer.shape[2] == WINDOW.capacity)
            buffer[0, 0, start : start + count] = np.array(new)[:, None]
        text += new
        self.longest[row] = max(self.longest[row], len(text))
        slots.lengths[row] = len(text)

    def fail(self, row: int, count: int) -> None:
        """Append tokens, and undo it because of an error."""
        before, longest = list(self.texts[row]), self.longest[row]
        room = min(count, CONTEXT - len(before))
        parts = [128] * (room // 128) + [1] * (room % 128)

        def append() -> None:
            with self.slots.unchanged_on_error(room, row=row):
                for part in parts:
                    self.append(row, part)
                raise KeyError

        with pytest.raises(KeyError):
            append()
        self.texts[row], self.longest[row] = before, longest

    def check(self) -> None:
        for row, text in enumerate(self.texts):
            (_, narrow, _), (_, whole, _) = self.slots.held.bound(slice(row, row + 1))
            assert self.slots.lengths[row] == len(text)
            assert whole[0, 0, : len(text), 0].tolist() == text
            start = int(self.slots.windows.starts[row])
            assert start % WINDOW.step == 0
            needed = max(0, len(text) + 1 - WINDOW.size)
            assert start <= needed
            assert narrow[0, 0, needed - start : len(text) - start, 5].tolist() == text[needed:]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_rows_hold_what_the_next_token_attends_to(data: st.DataObject) -> None:
    written = Written(2)
    row_of = st.integers(0, 1)
    for _ in range(data.draw(st.integers(1, 25))):
        row = data.draw(row_of)
        text = written.texts[row]
        match data.draw(st.sampled_from(["append", "step", "rewind", "copy", "restore", "fail"])):
            case "append":
                written.append(row, data.draw(st.integers(1, 127)) if len(text) < 1500 else 1)
            case "step":
                written.append(row, 1)
            case "rewind":
                back = data.draw(st.integers(max(0, len(text) - 200), len(text)))
                least = written.slots.windows.least(row)
                assert least <= max(0, written.longest[row] - BACK)
                if 0 < back < least:
                    with pytest.raises(InputError, match="keep only the last tokens"):
                        written.slots.rewind(back, row=row)
                else:
                    written.slots.rewind(back, row=row)
                    del text[back:]
                    written.longest[row] = written.longest[row] if back else 0
            case "copy":
                written.slots.copy_rows([row], [1 - row])
                written.longest[1 - row] = written.longest[row]
                written.texts[1 - row] = list(text)
            case "restore":
                snapshot = written.slots.snapshot(row=row)
                assert snapshot.windowed is not None
                assert snapshot.windowed <= WINDOW.kept
                written.slots.restore(snapshot, row=1 - row)
                written.longest[1 - row] = written.longest[row]
                written.texts[1 - row] = list(text)
            case "fail":
                written.fail(row, data.draw(st.integers(1, 400)))
        written.check()


def test_a_move_keeps_enough_to_go_back_at_any_length() -> None:
    for length in range(CONTEXT):
        start = WINDOW.start(length)
        assert start % WINDOW.step == 0
        shortest = start + WINDOW.size - 1 if start else 0
        assert length - shortest >= WINDOW.back or not start
        # not a step more than that
        assert length - WINDOW.kept - start < WINDOW.step


@pytest.mark.parametrize("windowed", [50, 99, WINDOW.kept, 400])
def test_a_file_needs_the_tokens_of_its_window_and_no_more(windowed: int, tmp_path: Path) -> None:
    slots, file = Slots(STATES, count=1, context_length=CONTEXT), tmp_path / "saved"
    buffers = tuple(np.zeros(*layout) for layout in slots.layout(500, windowed))
    states = Snapshot(identity="", length=500, buffers=buffers, windowed=windowed)
    write_states(file, [0] * 500, states)
    if windowed in (99, WINDOW.kept):
        slots.restore(read_states(file, slots)[1])
        assert slots.lengths == [500]
    else:
        with pytest.raises(StateFileError, match="expected the states of the bundle, got others"):
            read_states(file, slots)


def test_blocks_of_a_prompt_restore_its_window() -> None:
    written, slots = Written(2), Slots(STATES, count=1, context_length=CONTEXT)
    for end in range(128, 1025, 128):
        written.append(0, 64)
        written.append(0, 64)
        assert written.slots.holds(end - 128)
        block = written.slots.view(start=end - 128, end=end)
        assert [buffer.shape[2] for buffer in block.buffers] == [128, 128]
        slots.extend(block, row=0)
    assert not written.slots.holds(0)
    copied = Written(1)
    copied.slots, copied.texts = slots, [written.texts[0]]
    copied.check()


@pytest.mark.parametrize(
    ("width", "tokens"), [(8, 1024), (16, 1024), (24, 512), (32, 512), (64, 256), (80, 128)]
)
def test_rows_move_by_the_blocks_of_the_kernel(width: int, tokens: int) -> None:
    window = window_of([state("key", window=8, width=width)], 10_000)
    assert window is not None
    assert window.step == tokens


def test_a_context_that_fits_into_the_slots_needs_no_window() -> None:
    assert window_of(STATES, WINDOW.capacity) is None
    assert window_of(STATES, WINDOW.capacity + 1) == WINDOW
    assert window_of([state("key")], 10_000) is None


def test_a_call_has_room_for_all_tokens_that_it_must_take() -> None:
    for min_call_tokens, part in ((1, 128), (128, 128), (256, 256)):
        window = window_of(STATES, 10_000, min_call_tokens=min_call_tokens)
        assert window is not None
        assert window.part == part
        assert window.capacity == WINDOW.capacity + part - 128


def test_eight_bits_need_heads_of_a_power_of_two() -> None:
    assert sums_in_blocks(state("key", width=96), is_int8=False)
    assert not sums_in_blocks(state("key", width=96), is_int8=True)
    assert sums_in_blocks(state("key", width=64), is_int8=True)


def test_memory_counts_no_more_than_the_slots() -> None:
    manifest = msgspec.structs.replace(
        tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model())),
        states=STATES,
        context_length=CONTEXT,
    )
    assert row_bytes(manifest, 100) == 2 * 512 * 100
    assert row_bytes(manifest, 1900) == 512 * (1900 + WINDOW.capacity)
    assert row_bytes(manifest, 3800, rows=2) == 512 * (3800 + 2 * WINDOW.capacity)

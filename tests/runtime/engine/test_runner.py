from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, TinyDecoder, assert_close, write_bundle
from tests.tiny.numbers import random_ids

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Buffer, Slots
from ortolan.runtime.errors import ContextLengthError, NumericError

KINDS = ("unified", "split", "recurrent", "by-token")

Tiny = dict[str, tuple[TinyDecoder, Engine]]

ids = st.integers(0, VOCABULARY - 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("runner")
    bundles = {
        "unified": write_bundle(folder / "unified"),
        "split": write_bundle(folder / "split", split=True),
        "recurrent": write_bundle(folder / "recurrent", recurrent=True),
        "by-token": write_bundle(folder / "by-token", recurrent=True, takes_one=True),
    }
    return {kind: (tiny, Engine(open_bundle(tiny.path))) for kind, tiny in bundles.items()}


def new_runner(engine: Engine, slots: int = 1) -> Runner:
    runner = Runner(engine, engine.slots(slots))
    runner.select(range(slots))
    return runner


def step(runner: Runner, *tokens: int) -> NDArray[np.float32]:
    runner.step(tokens)
    return runner.logits_BV.copy()


def whole(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    return new_runner(engine).chunk(0, tokens, positions=range(len(tokens)))


# --- one row ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_matches_the_reference_at_every_position(tiny: Tiny, kind: str) -> None:
    decoder, engine = tiny[kind]
    tokens = random_ids(70)
    assert_close(whole(engine, tokens), decoder.reference(tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_short_calls_give_the_logits_of_the_positions_asked_for(tiny: Tiny, kind: str) -> None:
    decoder, engine = tiny[kind]
    tokens, positions = random_ids(70), [69, 3, 20, 21]
    runner = Runner(engine, engine.slots(), call_tokens=16)
    logits = runner.chunk(0, tokens, positions=positions)
    assert_close(logits, decoder.reference(tokens)[positions])
    assert runner.slots.lengths == [70]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=1, max_size=40), chunk=st.integers(1, 12))
def test_chunks_match_one_call(tiny: Tiny, kind: str, tokens: list[int], chunk: int) -> None:
    _, engine = tiny[kind]
    got = new_runner(engine).prefill(0, tokens, most=chunk)
    assert_close(got, whole(engine, tokens)[-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=2, max_size=40), data=st.data())
def test_decoding_after_a_prompt_matches_one_call(
    tiny: Tiny, kind: str, tokens: list[int], data: st.DataObject
) -> None:
    _, engine = tiny[kind]
    expected = whole(engine, tokens)
    prompt = data.draw(st.integers(0, len(tokens) - 1))
    runner = new_runner(engine)
    if prompt > 0:
        runner.prefill(0, tokens[:prompt])
    for position in range(prompt, len(tokens)):
        assert_close(step(runner, tokens[position])[0], expected[position])
    assert runner.slots.lengths == [len(tokens)]


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_across_every_growth_of_the_slots_up_to_the_context(tiny: Tiny, kind: str) -> None:
    decoder, engine = tiny[kind]
    tokens = random_ids(CONTEXT)
    expected = decoder.reference(tokens)
    runner = new_runner(engine)
    runner.prefill(0, tokens[:250])
    capacities = {runner.slots.capacity}
    for position in range(250, CONTEXT):
        logits = step(runner, tokens[position])[0]
        capacities.add(runner.slots.capacity)
        assert_close(logits, expected[position])
    assert capacities == {256, 512, 768, CONTEXT}
    with pytest.raises(ContextLengthError, match=f"{CONTEXT}"):
        runner.step([0])
    assert runner.slots.lengths == [CONTEXT]


@settings(max_examples=10, deadline=None)
@given(
    tokens=st.lists(ids, min_size=2, max_size=30),
    other=st.lists(ids, min_size=1, max_size=30),
    data=st.data(),
)
def test_a_rewound_row_matches_a_fresh_one(
    tiny: Tiny, tokens: list[int], other: list[int], data: st.DataObject
) -> None:
    _, engine = tiny["unified"]
    length = data.draw(st.integers(0, len(tokens) - 1))
    rewound, fresh = new_runner(engine), new_runner(engine)
    rewound.prefill(0, tokens)
    rewound.slots.rewind(length)
    if length > 0:
        fresh.prefill(0, tokens[:length])
    assert_close(rewound.prefill(0, other), fresh.prefill(0, other))


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_row_matches_the_original(tiny: Tiny, kind: str) -> None:
    _, engine = tiny[kind]
    runner = new_runner(engine)
    runner.prefill(0, random_ids(50))
    snapshot = runner.slots.snapshot()
    expected = runner.prefill(0, random_ids(300, seed=5))
    runner.prefill(0, random_ids(90, seed=6))
    runner.slots.restore(snapshot)
    np.testing.assert_array_equal(runner.prefill(0, random_ids(300, seed=5)), expected)


def test_split_graphs_agree_with_the_unified_graph(tiny: Tiny) -> None:
    rows = []
    for kind in ("unified", "split"):
        runner = new_runner(tiny[kind][1])
        runner.prefill(0, random_ids(33), most=10)
        rows.append([step(runner, 5) for _ in range(6)])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_prefill_beyond_the_context_changes_nothing(tiny: Tiny) -> None:
    runner = new_runner(tiny["unified"][1])
    runner.prefill(0, random_ids(10))
    with pytest.raises(ContextLengthError, match=f"at most {CONTEXT} tokens, got {CONTEXT + 1}"):
        runner.prefill(0, random_ids(CONTEXT - 9))
    assert (runner.slots.lengths, runner.slots.capacity) == ([10], 256)


def test_teacher_forced_logits_that_are_not_finite_are_an_error(tiny: Tiny) -> None:
    _, engine = tiny["unified"]
    runner = new_runner(engine)
    runner.slots.lengths[0] = 2
    for _, keys, _ in runner.slots.bound(slice(0, 1)):
        keys[...] = np.nan
    with pytest.raises(NumericError, match="positions 0 to 2"):
        runner.teacher_forced([1, 2, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_a_released_slot_matches_a_new_one(tiny: Tiny, kind: str) -> None:
    _, engine = tiny[kind]
    used = new_runner(engine)
    for _ in range(2):
        for token in range(1, 260):
            used.step([token % VOCABULARY])
        used.slots.release(0)
        new = new_runner(engine)
        for token in random_ids(20):
            np.testing.assert_array_equal(step(used, token), step(new, token))
        used.slots.release(0)


def test_steps_are_bound_once_and_write_logits_in_place(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = tiny["unified"]
    bound: list[slice] = []
    of_rows = Slots.bound

    def count(slots: Slots, rows: slice) -> Iterator[tuple[State, Buffer, Buffer]]:
        bound.append(rows)
        return of_rows(slots, rows)

    monkeypatch.setattr(Slots, "bound", count)
    runner, place = new_runner(engine), None
    for _ in range(200):
        runner.step([1])
        place = place or runner.logits_BV.ctypes.data
    assert runner.logits_BV.ctypes.data == place
    assert bound == [slice(0, 1)]


# --- several rows -------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    rows=st.lists(st.lists(ids, min_size=1, max_size=20), min_size=2, max_size=4),
    tail=st.lists(ids, min_size=1, max_size=6),
)
def test_ragged_rows_decoded_together_match_single_rows(
    tiny: Tiny, rows: list[list[int]], tail: list[int]
) -> None:
    _, engine = tiny["unified"]
    runner = new_runner(engine, len(rows))
    for row, prompt in enumerate(rows):
        runner.prefill(row, prompt)
    for count, token in enumerate(tail, start=1):
        logits = step(runner, *[token] * len(rows))
        for row, prompt in enumerate(rows):
            assert_close(logits[row], whole(engine, prompt + tail[:count])[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 30, 256])
def test_a_row_that_rests_does_not_change_by_a_bit(tiny: Tiny, kind: str, length: int) -> None:
    _, engine = tiny[kind]
    runner = Runner(engine, engine.slots(4))
    resting = random_ids(length, seed=2)
    runner.prefill(0, resting)
    runner.prefill(2, random_ids(9, seed=1))
    snapshot = runner.slots.snapshot(row=0)
    runner.select([2])  # row 0 rests, row 1 is free
    for token in random_ids(50):  # row 2 becomes the longer one
        runner.step([token])
    assert runner.slots.lengths == [length, 0, 59, 0]
    for got, want in zip(runner.slots.snapshot(row=0).buffers, snapshot.buffers, strict=True):
        np.testing.assert_array_equal(got, want)
    assert_close(runner.prefill(0, [3]), whole(engine, [*resting, 3])[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_bit_identical_whatever_rows_join_and_leave(tiny: Tiny, kind: str) -> None:
    _, engine = tiny[kind]

    def alone(row: int) -> list[NDArray[np.float32]]:
        runner = Runner(engine, engine.slots(8))
        runner.prefill(row, random_ids(5 + row, seed=row))
        runner.select([row])
        return [step(runner, token)[row] for token in random_ids(40, seed=10 + row)]

    expected = {row: alone(row) for row in range(8)}
    runner, random = Runner(engine, engine.slots(8)), np.random.default_rng(0)
    done: dict[int, int] = {}
    while any(done.get(row, 0) < 40 for row in range(8)):
        new = [row for row in range(8) if row not in done]
        if new and random.random() < 0.3:
            runner.prefill(new[0], random_ids(5 + new[0], seed=new[0]))
            done[new[0]] = 0
        rows = [row for row, count in done.items() if count < 40 and random.random() < 0.7]
        if not rows:
            continue
        runner.select(sorted(rows))
        logits = step(runner, *[random_ids(40, seed=10 + row)[done[row]] for row in sorted(rows)])
        for row in rows:
            np.testing.assert_array_equal(logits[row], expected[row][done[row]])
            done[row] += 1


def test_steps_are_padded_to_a_multiple_of_rows(tmp_path: Path) -> None:
    engine = Engine(packed_bundles.write(tmp_path / "int4", "int4"))
    runner, seen = Runner(engine, engine.slots(4), exact=True), []
    bound = runner.slots.bound

    def watched(rows: slice) -> Any:
        seen.append(rows.stop)
        return bound(rows)

    runner.slots.bound = watched  # type: ignore[method-assign]
    for rows in ([0], [0, 1], [0, 1, 2], [2]):
        runner.select(rows)
        runner.step([1] * len(rows))
    assert seen == [2, 4]
    with pytest.raises(ValueError, match="multiple of 2"):
        Runner(engine, engine.slots(3), exact=True)


# --- states that are replaced: the graph reads the old one after it has written the new one -----


class OneBuffer(Slots):
    """Binds input and output of every state to one buffer."""

    def bound(self, rows: slice) -> Iterator[tuple[State, Buffer, Buffer]]:
        for state, read, _ in super().bound(rows):
            yield state, read, read

    def take_over(self, rows: Any) -> None:
        pass


def test_replaced_states_need_two_buffers(tiny: Tiny) -> None:
    decoder, engine = tiny["recurrent"]
    tokens, states = random_ids(12), engine.manifest.states
    expected = decoder.reference(tokens)
    right = Runner(engine, engine.slots())
    wrong = Runner(engine, OneBuffer(states, count=1, context_length=CONTEXT))
    for runner in (right, wrong):
        runner.prefill(0, tokens[:4])
        runner.select([0])
    got = [(step(right, token)[0], step(wrong, token)[0]) for token in tokens[4:]]
    assert_close(np.array([logits for logits, _ in got]), expected[4:])
    assert np.abs(np.array([logits for _, logits in got]) - expected[4:]).max() > 0.1


def test_copied_rows_continue_from_the_replaced_state_of_their_parent(tiny: Tiny) -> None:
    decoder, engine = tiny["recurrent"]
    runner = new_runner(engine, 3)
    histories = [random_ids(6, seed=row) for row in range(3)]
    for tokens in zip(*histories, strict=True):
        runner.step(tokens)
    runner.slots.copy_rows([2, 0, 0], [0, 1, 2])
    grown = [histories[2], histories[0], histories[0]]
    for tokens in ((7, 8, 9), (10, 11, 12)):
        logits = step(runner, *tokens)
        grown = [[*history, token] for history, token in zip(grown, tokens, strict=True)]
        for row, history in enumerate(grown):
            assert_close(logits[row], decoder.reference(history)[-1])


def test_a_replaced_state_is_restored_on_either_turn(
    tiny: Tiny,
) -> None:
    decoder, engine = tiny["recurrent"]
    tokens = random_ids(9)
    for steps in (1, 2):
        runner = new_runner(engine, 2)
        for token in tokens[:steps]:
            runner.step([token, 0])
        snapshot = runner.slots.snapshot(row=0)
        runner.step([5, 6])
        runner.slots.restore(snapshot, row=1)
        for position in range(steps, 9):
            logits = step(runner, 0, tokens[position])
            assert_close(logits[1], decoder.reference(tokens[: position + 1])[-1])

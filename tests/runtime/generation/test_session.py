"""`Session`: tokens that the caller appends, rewinds, copies and saves."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime.conftest import POISON
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, TinyDecoder, assert_close, write_bundle

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.state_file import write_states
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError, StateFileError
from ortolan.runtime.generation.session import Session
from ortolan.runtime.loading import load

KINDS = ["fp32", "recurrent", "by-token"]

ids = st.integers(0, VOCABULARY - 1)


@settings(max_examples=10, deadline=None)
@given(parts=st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=5))
def test_parts_equal_the_reference_for_the_whole(
    tiny: TinyDecoder, model: Decoder, parts: list[list[int]]
) -> None:
    session, whole = model.session(), []
    for part in parts:
        whole += part
        assert_close(session.append(part), tiny.reference(whole)[-1])
        assert session.tokens == tuple(whole)
        assert len(session) == len(whole)


@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=1, max_size=20), token=ids, data=st.data())
def test_a_rewound_session_equals_a_new_one(
    model: Decoder, tokens: list[int], token: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(tokens)))
    rewound, fresh = model.session(), model.session()
    rewound.append(tokens)
    rewound.rewind(length)
    assert rewound.tokens == tuple(tokens[:length])
    assert_close(rewound.append([token]), fresh.append([*tokens[:length], token]))


def test_logits_are_a_copy(model: Decoder) -> None:
    session = model.session()
    first = session.append([1])
    copy = first.copy()
    session.append([2])
    np.testing.assert_array_equal(first, copy)


def test_growing_keeps_the_context(tiny: TinyDecoder, model: Decoder) -> None:
    tokens = [index * 7 % VOCABULARY for index in range(620)]
    expected = tiny.reference(tokens)
    session = model.session()
    session.append(tokens[:255])
    for position in range(255, 260):
        assert_close(session.append([tokens[position]]), expected[position])
    assert_close(session.append(tokens[260:]), expected[-1])


def test_a_session_holds_exactly_the_context(model: Decoder) -> None:
    session = model.session()
    session.append([1] * CONTEXT)
    for more in ([1], [1, 2]):
        with pytest.raises(ContextLengthError, match=f"context of {CONTEXT}"):
            session.append(more)
    assert len(session) == CONTEXT


@pytest.mark.parametrize(
    "invalid",
    [[], [VOCABULARY], [-1], [True], [1.0], ["a"], "12", 5, np.array([1.5]), np.array([[1]])],
)
def test_invalid_ids_are_rejected_and_change_nothing(model: Decoder, invalid: Any) -> None:
    session = model.session()
    session.append([1, 2])
    with pytest.raises(InputError, match=r"^append"):
        session.append(invalid)
    assert session.tokens == (1, 2)


def test_arrays_of_ids_are_accepted(model: Decoder) -> None:
    one, other = model.session(), model.session()
    np.testing.assert_array_equal(one.append(np.array([3, 4], np.uint8)), other.append([3, 4]))
    assert one.tokens == (3, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 30, 1040])
def test_an_error_inside_leaves_the_session_unchanged(
    models: dict[str, Decoder], monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    session, other = models[kind].session(), models[kind].session()
    for one in (session, other):
        one.append([5, 6, 7])
    method = "step" if count == 1 else "chunk"
    run: Callable[..., Any] = getattr(Runner, method)
    last = {1: 1, 30: 1, 1040: 3}[count]  # 1040 tokens are three chunks
    runs = []

    def fail_after_the_last(runner: Runner, *args: Any, **options: Any) -> Any:
        logits = run(runner, *args, **options)
        runs.append(method)
        if len(runs) == last:
            raise MemoryError
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(Runner, method, fail_after_the_last)
        with pytest.raises(MemoryError):
            session.append([9] * count)
    assert session.tokens == (5, 6, 7)
    assert_close(session.append([8]), other.append([8]))
    assert_close(session.append([1, 2]), other.append([1, 2]))


def test_logits_that_are_not_finite_are_an_error_and_change_nothing(poisoned: Decoder) -> None:
    session, other = poisoned.session(), poisoned.session()
    for one in (session, other):
        one.append([1, 2])
    for tokens in ([POISON], [3, POISON, 4]):
        with pytest.raises(NumericError, match="not finite"):
            session.append(tokens)
    np.testing.assert_array_equal(session.append([3]), other.append([3]))


def test_a_recurrent_state_can_only_be_rewound_to_the_start(models: dict[str, Decoder]) -> None:
    session, fresh = models["recurrent"].session(), models["recurrent"].session()
    session.append([1, 2, 3])
    with pytest.raises(InputError, match="'sum'"):
        session.rewind(2)
    assert session.tokens == (1, 2, 3)
    session.rewind(0)
    np.testing.assert_array_equal(session.append([4]), fresh.append([4]))


# --- threads ----------------------------------------------------------------------------------


def test_a_second_thread_is_rejected(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session()
    inside, leave = threading.Event(), threading.Event()
    run: Callable[..., Any] = Runner.chunk

    def wait(runner: Runner, *args: Any, **options: Any) -> Any:
        inside.set()
        assert leave.wait(20)
        return run(runner, *args, **options)

    monkeypatch.setattr(Runner, "chunk", wait)
    worker = threading.Thread(target=session.append, args=([1, 2],))
    worker.start()
    assert inside.wait(20)
    uses: list[Callable[[], object]] = [
        lambda: session.append([3]),
        lambda: session.rewind(0),
        session.close,
    ]
    for use in uses:
        with pytest.raises(InputError, match="Another thread"):
            use()
    leave.set()
    worker.join()
    assert session.tokens == (1, 2)


def test_sessions_in_different_threads_do_not_affect_each_other(model: Decoder) -> None:
    chains = [[(start + index) % VOCABULARY for index in range(60)] for start in range(4)]

    def work(chain: list[int]) -> NDArray[np.float32]:
        session = model.session()
        return [session.append([token]) for token in chain][-1]

    with ThreadPoolExecutor() as pool:
        got = list(pool.map(work, chains))
    for logits, chain in zip(got, chains, strict=True):
        assert_close(logits, model.session().append(chain))


def test_a_closed_session_is_rejected(model: Decoder, tmp_path: Path) -> None:
    with model.session() as session:
        session.append([1])
    session.close()
    assert session.tokens == ()
    uses: list[Callable[[], object]] = [
        lambda: session.append([1]),
        lambda: session.rewind(0),
        session.fork,
        lambda: session.save(tmp_path / "saved"),
    ]
    for use in uses:
        with pytest.raises(InputError, match="closed"):
            use()


@pytest.mark.parametrize("way", ["close", "drop"])
def test_the_memory_of_a_session_is_released(model: Decoder, way: str) -> None:
    session: Session | None = model.session()
    assert session is not None
    session.append([1])
    session.append([1, 2])
    slots = weakref.ref(session._runner.slots)
    gc.disable()
    try:
        if way == "close":
            session.close()
        else:
            session = None
        assert slots() is None
    finally:
        gc.enable()


# --- snapshots, forks and files ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_snapshot_continues_to_the_bit(models: dict[str, Decoder], kind: str) -> None:
    session, other = models[kind].session(), models[kind].session()
    session.append([1, 2, 3])
    session.append([4])
    snapshot = session.snapshot()
    expected = [session.append([token]) for token in (5, 6, 7)]
    session.append([8, 9])
    for one in (session, other):
        one.restore(snapshot)
        assert one.tokens == (1, 2, 3, 4)
        for token, logits in zip((5, 6, 7), expected, strict=True):
            np.testing.assert_array_equal(one.append([token]), logits)


def test_a_snapshot_of_another_bundle_is_rejected(model: Decoder, tmp_path: Path) -> None:
    other = load(write_bundle(tmp_path / "bundle", seed=1).path)  # the same states, other weights
    session, foreign = model.session(), other.session()
    session.append([1, 2, 3])
    foreign.append([4, 5])
    with pytest.raises(InputError, match="another bundle"):
        session.restore(foreign.snapshot())
    assert session.tokens == (1, 2, 3)


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "int4"])
@settings(max_examples=8, deadline=None)
@given(
    before=st.lists(ids, max_size=300),
    after=st.lists(st.lists(ids, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_a_saved_and_a_forked_session_continue_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory,
    models: dict[str, Decoder],
    kind: str,
    before: list[int],
    after: list[list[int]],
) -> None:
    path = tmp_path_factory.getbasetemp() / f"saved {kind}"
    session = models[kind].session()
    if before:
        session.append(before)
    session.save(path)
    loaded, forked = models[kind].load_session(path), session.fork()
    assert loaded.tokens == forked.tokens == session.tokens == tuple(before)
    expected = [session.append(part) for part in after]
    for other in (loaded, forked):
        for part, logits in zip(after, expected, strict=True):
            np.testing.assert_array_equal(other.append(part), logits)
        assert other.tokens == session.tokens


def test_forks_are_independent_and_outlive_their_parent(model: Decoder) -> None:
    with model.session() as parent:
        parent.append([1, 2, 3])
        one, two = parent.fork(), parent.fork()
        first = one.append([4])
        assert parent.tokens == two.tokens == (1, 2, 3)
    np.testing.assert_array_equal(two.append([4]), first)
    two.rewind(1)
    assert one.tokens == (1, 2, 3, 4)


def test_files_that_do_not_fit_are_rejected(models: dict[str, Decoder], tmp_path: Path) -> None:
    model = models["fp32"]
    session = model.session()
    session.append([1])
    with pytest.raises(StateFileError, match="cannot be saved"):
        session.save(tmp_path / "missing" / "saved")
    for path in (tmp_path / "saved", tmp_path):
        with pytest.raises(StateFileError):
            model.load_session(path)
    assert session.tokens == (1,)
    session.save(tmp_path / "saved")
    with pytest.raises(StateFileError, match="bundle"):
        models["recurrent"].load_session(tmp_path / "saved")
    slots = model.session()._runner.slots
    slots.lengths[0] = 1
    write_states(tmp_path / "saved", [VOCABULARY], slots.view())
    with pytest.raises(InputError, match=f"{VOCABULARY}"):
        model.load_session(tmp_path / "saved")

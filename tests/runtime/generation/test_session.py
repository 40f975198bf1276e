"""`Session`: tokens that the caller appends, rewinds, copies and saves."""

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.conftest import POISON, Models
from tests.runtime.serving.faults import failing
from tests.runtime.tiny_adapters import NAMES, Pairs
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, assert_close, write_bundle

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.errors import ComputeError, ContextLengthError, InputError, NumericError
from ortolan.runtime.generation.session import Session, SessionSnapshot
from ortolan.runtime.loading import load

RECURRENT = ("recurrent", "by-token")


def ids_of(count: int, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(token) for token in random.integers(0, VOCABULARY - 2, count)]


class Histories(RuleBasedStateMachine):
    """Up to three sessions of one adapter, and a snapshot."""

    model: Decoder
    folder: Path
    is_recurrent: bool
    largest: int

    @initialize(adapter=st.sampled_from(NAMES))
    def start(self, adapter: str | None) -> None:
        self.adapter = adapter
        self.sessions: list[tuple[Session, list[int]]] = []
        self.kept: tuple[SessionSnapshot, list[int]] | None = None
        self.replace(0, self.model.session(adapter=adapter), [])

    def replace(self, place: int, session: Session, tokens: list[int]) -> None:
        self.sessions[place : place + 1] = [(session, tokens)]
        assert session.tokens == tuple(tokens)

    @rule(
        which=st.integers(0, 2),
        count=st.integers(1, 12) | st.sampled_from([1, 127, 250]),
        seed=st.integers(0, 9),
    )
    def append(self, which: int, count: int, seed: int) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        more = ids_of(min(count, self.largest), seed)
        if len(tokens) + len(more) > CONTEXT:
            with pytest.raises(ContextLengthError):
                session.append(more)
        else:
            tokens += more
            logits = session.append(np.array(more, np.uint8))
            assert_close(logits, self.model.logits(tokens, adapter=self.adapter)[-1])
        assert session.tokens == tuple(tokens)
        assert len(session) == len(tokens)

    @rule(which=st.integers(0, 2), share=st.floats(0, 1))
    def rewind(self, which: int, share: float) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        length = round(share * len(tokens))
        if self.is_recurrent and 0 < length < len(tokens):
            with pytest.raises(InputError, match="'sum'"):
                session.rewind(length)
        else:
            session.rewind(length)
            del tokens[length:]
        assert session.tokens == tuple(tokens)

    @rule(which=st.integers(0, 2), place=st.integers(0, 2))
    def fork(self, which: int, place: int) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        self.replace(place, session.fork(), list(tokens))

    @rule(which=st.integers(0, 2))
    def keep(self, which: int) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        self.kept = session.snapshot(), list(tokens)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 2))
    def restore(self, which: int) -> None:
        assert self.kept is not None
        place = which % len(self.sessions)
        session, (snapshot, tokens) = self.sessions[place][0], self.kept
        session.restore(snapshot)
        self.replace(place, session, list(tokens))

    @rule(which=st.integers(0, 2), place=st.integers(0, 2))
    def save_and_load(self, which: int, place: int) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        session.save(self.folder / "saved")
        loaded = self.model.load_session(self.folder / "saved", adapter=self.adapter)
        self.replace(place, loaded, list(tokens))

    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 30, 300]))
    def fail(self, which: int, count: int) -> None:
        session, tokens = self.sessions[which % len(self.sessions)]
        last = -(-count // 128)  # by token, more calls would follow
        if len(tokens) + count <= CONTEXT:
            with failing(lambda call: call == last - 1), pytest.raises(ComputeError):
                session.append(ids_of(count, 1))
        assert session.tokens == tuple(tokens)


@pytest.mark.parametrize("kind", ["fp32", "split", "int4", *RECURRENT])
def test_a_session_of_any_history_equals_its_tokens_at_once(
    pairs: Pairs, tmp_path: Path, kind: str
) -> None:
    class Case(Histories):
        model = pairs[kind].adapted
        folder = tmp_path
        is_recurrent = kind in RECURRENT
        largest = 60 if kind == "by-token" else 250  # a call for every token is slow

    machine = Case.TestCase
    machine.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
    machine().runTest()


@pytest.mark.parametrize("kind", ["fp32", "int4", *RECURRENT])
@pytest.mark.parametrize("count", [0, 5, 300])
def test_copies_of_a_session_continue_to_the_bit(
    models: Models, tmp_path: Path, kind: str, count: int
) -> None:
    model = models[kind]
    session, other = model.session(), model.session()
    if count:
        session.append(ids_of(count, 0))
    session.save(tmp_path / "saved")
    other.append([9])
    other.restore(session.snapshot())
    copies = [other, session.fork(), model.load_session(tmp_path / "saved")]
    parts = [[5], [6, 7], [8]]
    expected = [session.append(part) for part in parts]
    session.append([1])  # the logits that it returned stay
    session.close()
    for copy in copies:
        for part, logits in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(copy.append(part), logits)


def test_logits_that_are_not_finite_are_an_error_and_change_nothing(poisoned: Decoder) -> None:
    session, other = poisoned.session(), poisoned.session()
    for one in (session, other):
        one.append([1, 2])
    for tokens in ([POISON], [3, POISON, 4]):
        with pytest.raises(NumericError, match="not finite"):
            session.append(tokens)
    np.testing.assert_array_equal(session.append([3]), other.append([3]))


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


def states_in_memory() -> int:
    return sum(type(item) is Slots for item in gc.get_objects())


@pytest.mark.parametrize("ending", ["close", "drop"])
@pytest.mark.parametrize("kind", ["session", "stream"])
def test_memory_is_released_without_the_garbage_collector(
    model: Decoder, kind: str, ending: str
) -> None:
    gc.collect()
    gc.disable()
    try:
        before = states_in_memory()
        used: Any = model.session() if kind == "session" else model.stream("hello")
        (next if kind == "stream" else lambda session: session.append([1]))(used)
        assert states_in_memory() == before + 1
        if ending == "close":
            used.close()
        else:
            del used
        assert states_in_memory() == before
    finally:
        gc.enable()


# --- refusals ---------------------------------------------------------------------------------


@pytest.fixture
def session(model: Decoder) -> Iterator[Session]:
    with model.session() as session:
        session.append([1, 2])
        yield session
        assert session.tokens == (1, 2)


IDS: list[Any] = [
    *([], [VOCABULARY], [-1], [True], [1.0], ["a"], "12", 5),
    *(np.array([1.5]), np.array([[1]]), [1] * (CONTEXT - 1)),
]


@pytest.mark.parametrize("ids", IDS, ids=lambda ids: f"{ids}"[:20])
def test_invalid_ids_are_refused(session: Session, ids: Any, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: session.append(ids)) == snapshot


def test_a_session_of_a_closed_model_is_refused(tmp_path: Path) -> None:
    model = load(write_bundle(tmp_path / "bundle").path, Decoder, threads=1)
    session = model.session()
    session.append([3, 4])
    session.append([5])  # its step stays bound
    model.close()
    with pytest.raises(InputError, match="This model is closed"):
        session.append([5])
    assert session.tokens == (3, 4, 5)


def test_a_closed_session_is_refused(
    model: Decoder, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    session = model.session()
    session.append([1])
    session.close()
    session.close()
    assert session.tokens == ()
    uses: list[Callable[[], object]] = [
        lambda: session.append([1]),
        lambda: session.rewind(0),
        session.fork,
        lambda: session.save(tmp_path / "saved"),
    ]
    (text,) = {refusal(use) for use in uses}
    assert text == snapshot


def test_a_snapshot_of_another_bundle_or_adapter_is_refused(
    session: Session, pairs: Pairs, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    others = load(write_bundle(tmp_path / "bundle", seed=1).path), pairs["fp32"].adapted
    for foreign in (others[0].session(), others[1].session(adapter="a")):
        foreign.append([4, 5])
        kept = foreign.snapshot()
        assert refusal(lambda kept=kept: session.restore(kept)) == snapshot  # type: ignore[misc]

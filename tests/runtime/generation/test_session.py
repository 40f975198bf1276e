import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import (
    CONTEXT,
    VOCABULARY,
    TinyDecoder,
    assert_close,
    write_bundle,
)

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.state_file import write_states
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError, StateFileError
from ortolan.runtime.generation.session import Session
from ortolan.runtime.loading import load

POISON = 13

ids = st.integers(0, VOCABULARY - 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(tmp_path_factory.mktemp("session") / "bundle")


@pytest.fixture(scope="module")
def model(tiny: TinyDecoder) -> Decoder:
    return load(tiny.path, Decoder)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("session") / "recurrent"
    return load(write_bundle(folder, recurrent=True).path, Decoder)


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("session") / "by-token"
    return load(write_bundle(folder, recurrent=True, takes_one=True).path, Decoder)


@settings(max_examples=10, deadline=None)
@given(parts=st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=5))
def test_parts_give_what_the_reference_gives_for_the_whole(
    tiny: TinyDecoder, model: Decoder, parts: list[list[int]]
) -> None:
    session, whole = model.session(), []
    for part in parts:
        whole += part
        logits = session.append(part)
        assert_close(logits, tiny.reference(whole)[-1])
        assert session.tokens == tuple(whole)
        assert len(session) == len(whole)


@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=1, max_size=20), token=ids, data=st.data())
def test_a_rewound_sequence_gives_what_a_fresh_one_gives(
    model: Decoder, tokens: list[int], token: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(tokens)))
    rewound, fresh = model.session(), model.session()
    rewound.append(tokens)
    rewound.rewind(length)
    assert rewound.tokens == tuple(tokens[:length])
    assert_close(rewound.append([token]), fresh.append([*tokens[:length], token]))


def test_the_logits_belong_to_the_caller(model: Decoder) -> None:
    session = model.session()
    first = session.append([1])
    kept = first.copy()
    session.append([2])
    np.testing.assert_array_equal(first, kept)


def test_appending_across_a_growth_of_the_cache_keeps_the_context(
    tiny: TinyDecoder, model: Decoder
) -> None:
    tokens = [index * 7 % VOCABULARY for index in range(620)]
    expected = tiny.reference(tokens)
    session = model.session()
    session.append(tokens[:255])
    for position in range(255, 260):
        assert_close(session.append([tokens[position]]), expected[position])
    assert_close(session.append(tokens[260:]), expected[-1])


def test_a_sequence_holds_exactly_the_context(model: Decoder) -> None:
    session = model.session()
    session.append([1] * CONTEXT)
    for more in ([1], [1, 2]):
        with pytest.raises(ContextLengthError, match=f"context of {CONTEXT}"):
            session.append(more)
    assert len(session) == CONTEXT


@pytest.mark.parametrize(
    "wrong", [[VOCABULARY], [-1], [True], [1.0], ["a"], "12", 5, np.array([1.5]), np.array([[1]])]
)
def test_what_is_no_list_of_ids_is_refused_and_changes_nothing(
    model: Decoder, wrong: object
) -> None:
    session = model.session()
    session.append([1, 2])
    with pytest.raises(InputError, match=r"^append "):
        session.append(wrong)  # type: ignore[arg-type]
    assert session.tokens == (1, 2)


def test_no_ids_are_refused(model: Decoder) -> None:
    with pytest.raises(InputError, match="no token ids"):
        model.session().append([])


def test_arrays_of_ids_are_taken(model: Decoder) -> None:
    one, other = model.session(), model.session()
    np.testing.assert_array_equal(one.append(np.array([3, 4], np.uint8)), other.append([3, 4]))
    assert one.tokens == (3, 4)


@pytest.mark.parametrize("kind", ["model", "recurrent", "by_token"])
@pytest.mark.parametrize("count", [1, 30, 1040])
def test_an_error_inside_leaves_the_sequence_as_it_was(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    model: Decoder = request.getfixturevalue(kind)
    session, other = model.session(), model.session()
    for each in (session, other):
        each.append([5, 6, 7])
    method = "step" if count == 1 else "chunk"
    run: Callable[..., Any] = getattr(Runner, method)
    last = {1: 1, 30: 1, 1040: 3}[count]  # 1040 tokens are three chunks
    runs = []

    def fail_after_the_last(runner: Runner, *given: Any, **options: Any) -> Any:
        found = run(runner, *given, **options)
        runs.append(method)
        if len(runs) == last:
            raise MemoryError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Runner, method, fail_after_the_last)
        with pytest.raises(MemoryError):
            session.append([9] * count)
    assert session.tokens == (5, 6, 7)
    assert_close(session.append([8]), other.append([8]))
    assert_close(session.append([1, 2]), other.append([1, 2]))


def test_logits_that_are_not_finite_are_an_error_and_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("session") / "poisoned"
    model = load(write_bundle(folder, poisoned=POISON).path)
    session, other = model.session(), model.session()
    for each in (session, other):
        each.append([1, 2])
    for poisoned in ([POISON], [3, POISON, 4]):
        with pytest.raises(NumericError, match="not finite"):
            session.append(poisoned)
    np.testing.assert_array_equal(session.append([3]), other.append([3]))


def test_a_state_of_fixed_size_can_only_be_rewound_to_the_start(recurrent: Decoder) -> None:
    session, fresh = recurrent.session(), recurrent.session()
    session.append([1, 2, 3])
    with pytest.raises(InputError, match="'sum'"):
        session.rewind(2)
    assert session.tokens == (1, 2, 3)
    session.rewind(0)
    np.testing.assert_array_equal(session.append([4]), fresh.append([4]))


def test_a_second_thread_on_one_sequence_is_refused(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    inside, leave = threading.Event(), threading.Event()
    run: Callable[..., Any] = Runner.chunk

    def wait(runner: Runner, *given: Any, **options: Any) -> Any:
        inside.set()
        assert leave.wait(20)
        return run(runner, *given, **options)

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


def test_two_sequences_in_two_threads_give_what_each_gives_alone(model: Decoder) -> None:
    chains = [[(start + index) % VOCABULARY for index in range(60)] for start in range(4)]
    expected = [[model.session().append(chain[:60])] for chain in chains]
    got: list[np.ndarray | None] = [None] * len(chains)

    def work(index: int) -> None:
        session = model.session()
        for token in chains[index]:
            got[index] = session.append([token])

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(chains))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, alone in zip(got, expected, strict=True):
        assert one is not None
        assert_close(one, alone[0])


def test_a_closed_sequence_is_refused_and_closing_twice_is_not(model: Decoder) -> None:
    with model.session() as session:
        session.append([1])
    session.close()
    assert session.tokens == ()
    for use in (lambda: session.append([1]), lambda: session.rewind(0)):
        with pytest.raises(InputError, match="closed"):
            use()


# --- snapshots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "recurrent", "by_token"])
def test_a_restored_and_a_forked_sequence_go_on_as_the_first_one(
    request: pytest.FixtureRequest, kind: str
) -> None:
    model: Decoder = request.getfixturevalue(kind)
    session, fork = model.session(), model.session()
    session.append([1, 2, 3])
    session.append([4])
    kept = session.snapshot()
    expected = [session.append([token]) for token in (5, 6, 7)]
    session.append([8, 9])
    for each in (session, fork):
        each.restore(kept)
        assert each.tokens == (1, 2, 3, 4)
        for token, logits in zip((5, 6, 7), expected, strict=True):
            np.testing.assert_array_equal(each.append([token]), logits)


def test_a_snapshot_of_another_model_is_refused_and_changes_nothing(
    model: Decoder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # the same states, other weights
    other = load(write_bundle(tmp_path_factory.mktemp("other") / "bundle", seed=1).path)
    session, foreign = model.session(), other.session()
    session.append([1, 2, 3])
    foreign.append([4, 5])
    with pytest.raises(InputError, match="another bundle"):
        session.restore(foreign.snapshot())
    assert session.tokens == (1, 2, 3)


@pytest.mark.parametrize("way", ["close", "drop"])
def test_the_memory_of_a_sequence_comes_back(model: Decoder, way: str) -> None:
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


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, model: Decoder, recurrent: Decoder
) -> dict[str, Decoder]:
    folder = tmp_path_factory.mktemp("sessions")
    int4 = packed_bundles.write(folder / "int4", "int4", group=64).path
    return {"fp32": model, "recurrent": recurrent, "int4": load(int4, Decoder)}


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "int4"])
@settings(max_examples=8, deadline=None)
@given(
    before=st.lists(ids, min_size=1, max_size=300),
    after=st.lists(st.lists(ids, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_a_saved_and_a_forked_sequence_give_to_the_bit_what_the_kept_one_gives(
    tmp_path_factory: pytest.TempPathFactory,
    models: dict[str, Decoder],
    kind: str,
    before: list[int],
    after: list[list[int]],
) -> None:
    path = tmp_path_factory.getbasetemp() / f"saved {kind}"
    kept = models[kind].session()
    kept.append(before)
    kept.save(path)
    loaded, forked = models[kind].load_session(path), kept.fork()
    assert loaded.tokens == forked.tokens == kept.tokens == tuple(before)
    expected = [kept.append(part) for part in after]
    for other in (loaded, forked):
        for part, logits in zip(after, expected, strict=True):
            np.testing.assert_array_equal(other.append(part), logits)
        assert other.tokens == kept.tokens


def test_forks_go_their_own_ways_and_outlive_their_parent(model: Decoder) -> None:
    with model.session() as parent:
        parent.append([1, 2, 3])
        one, two = parent.fork(), parent.fork()
        first = one.append([4])
        assert parent.tokens == two.tokens == (1, 2, 3)
    np.testing.assert_array_equal(two.append([4]), first)
    two.rewind(1)
    assert one.tokens == (1, 2, 3, 4)


def test_an_empty_sequence_is_saved_and_forked(models: dict[str, Decoder], tmp_path: Path) -> None:
    for model in models.values():
        kept = model.session()
        kept.save(tmp_path / "empty")
        for other in (model.load_session(tmp_path / "empty"), kept.fork()):
            assert len(other) == 0
            np.testing.assert_array_equal(other.append([1, 2]), model.session().append([1, 2]))


def test_a_sequence_of_another_bundle_is_not_loaded(
    models: dict[str, Decoder], tmp_path: Path
) -> None:
    models["fp32"].session().save(tmp_path / "saved")
    with pytest.raises(StateFileError, match="expected states of the bundle"):
        models["recurrent"].load_session(tmp_path / "saved")


def test_places_that_cannot_be_read_or_written_are_named(model: Decoder, tmp_path: Path) -> None:
    session = model.session()
    session.append([1])
    with pytest.raises(StateFileError, match="cannot be saved there"):
        session.save(tmp_path / "missing" / "saved")
    with pytest.raises(StateFileError, match="cannot be read"):
        model.load_session(tmp_path / "saved")
    with pytest.raises(StateFileError, match="expected a file"):
        model.load_session(tmp_path)
    assert session.tokens == (1,)


def test_ids_outside_the_vocabulary_are_not_loaded(model: Decoder, tmp_path: Path) -> None:
    slots = model.session()._runner.slots
    slots.lengths[0] = 1
    write_states(tmp_path / "saved", [VOCABULARY], slots.view())
    with pytest.raises(InputError, match=f"{VOCABULARY}"):
        model.load_session(tmp_path / "saved")


@pytest.mark.parametrize("use", [Session.fork, lambda session: session.save("saved")])
def test_a_closed_sequence_is_neither_forked_nor_saved(
    model: Decoder, use: Callable[[Session], object]
) -> None:
    session = model.session()
    session.close()
    with pytest.raises(InputError, match="closed"):
        use(session)

"""What is kept between requests, and what a request finds of the one before."""

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_decoder import (
    BOS,
    HEAD_WIDTH,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime.engine.cache import CAPACITY_STEP
from ortolan.runtime.engine.step import Step
from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.shelf import KEPT_BYTES, Shelf
from ortolan.runtime.model import Model, load

SOURCE = Path(__file__).parents[3] / "src"
POISON = 13
KINDS = ("unified", "split", "recurrent")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shelf")
    made = {
        "unified": write_bundle(folder / "unified", tokenizer=tokenizer_json()),
        "split": write_bundle(folder / "split", split=True),
        "recurrent": write_bundle(folder / "recurrent", recurrent=True),
        "poisoned": write_bundle(folder / "poisoned", tokenizer=tokenizer_json(), poisoned=POISON),
    }
    return {kind: tiny.path for kind, tiny in made.items()}


@pytest.fixture
def model(bundles: dict[str, Path]) -> Model:
    return load(bundles["unified"], threads=1)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """New tokens of every step that is bound; a prompt of one token looks like a decoder."""
    counts: list[int] = []
    bind: Callable[..., None] = Step.bind

    def count(step: Step, buffers: Any) -> None:
        counts.append(step.ids.shape[1])
        bind(step, buffers)

    monkeypatch.setattr(Step, "bind", count)
    return counts


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed + 7 * index) % BOS for index in range(length)]


def tokens(model: Model, prompts: list[list[int]], count: int = 8) -> list[tuple[int, ...]]:
    return [one.tokens for one in model.generate(prompts, max_new_tokens=count, ignore_eos=True)]


# --- the shelf --------------------------------------------------------------------------------


@dataclass(eq=False)
class Thing:
    size_bytes: int = 1


def test_what_was_put_is_taken_once_and_for_its_shape_alone() -> None:
    shelf, thing = Shelf[Thing](), Thing()
    assert shelf.take(2) is None
    shelf.put(2, thing)
    assert shelf.take(2) is thing
    assert shelf.take(2) is None
    shelf.put(2, thing)
    assert shelf.take(3) is None
    assert shelf.take(2) is None


def test_the_last_thing_takes_the_place_of_the_one_before() -> None:
    shelf, first, second = Shelf[Thing](), Thing(), Thing()
    shelf.put(1, first)
    shelf.put(2, second)
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert shelf.take(2) is second


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_too_large_is_not_kept(more: int) -> None:
    shelf = Shelf[Thing]()
    shelf.put(1, Thing(KEPT_BYTES + more))
    assert (shelf.take(1) is None) == (more > 0)


# --- requests one after the other -------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_a_second_request_with_as_many_rows_binds_its_prompts_alone(
    model: Model, bound: list[int], rows: int
) -> None:
    tokens(model, [prompt(4)] * rows)
    assert bound == [4] * rows + [1]
    bound.clear()
    tokens(model, [prompt(9, seed=3)] * rows)
    assert bound == [9] * rows
    bound.clear()
    tokens(model, [prompt(5)] * (rows + 1))
    assert bound == [5] * (rows + 1) + [1]


def test_a_capacity_that_has_grown_stays(model: Model, bound: list[int]) -> None:
    tokens(model, [prompt(CAPACITY_STEP - 4)])
    assert bound == [CAPACITY_STEP - 4, 1, 1]
    bound.clear()
    tokens(model, [prompt(CAPACITY_STEP + 4)])
    assert bound == [CAPACITY_STEP + 4]


@pytest.mark.parametrize("less", [0, 1])
def test_buffers_are_kept_up_to_a_size_that_counts_states_and_logits(
    model: Model, bound: list[int], less: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = LAYERS * 2 * KV_HEADS * CAPACITY_STEP * HEAD_WIDTH + VOCABULARY
    monkeypatch.setattr("ortolan.runtime.generation.shelf.KEPT_BYTES", 2 * 4 * numbers - less)
    tokens(model, [prompt(4)] * 2)
    bound.clear()
    tokens(model, [prompt(4)] * 2)
    assert bound == [4, 4] + [1] * less


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_gives_what_it_gives_first_whatever_came_before(
    bundles: dict[str, Path], kind: str
) -> None:
    requests = [
        [prompt(300, seed=5)],
        [prompt(9, seed=1)],
        [prompt(1, seed=2)],
        [prompt(40, seed=3)],
        [prompt(30, seed=4), prompt(2, seed=5), prompt(280, seed=6)],
        [prompt(3, seed=7), prompt(25, seed=8), prompt(11, seed=9)],
        [prompt(17, seed=7), prompt(1, seed=8), prompt(5, seed=9)],
    ]
    used = load(bundles[kind], threads=1)
    for prompts in requests:
        assert tokens(used, prompts, 20) == tokens(load(bundles[kind], threads=1), prompts, 20)


# --- requests at once -------------------------------------------------------------------------


def test_streams_that_take_turns_do_not_share_buffers(model: Model) -> None:
    texts = ["hello", "worlds"]
    expected = [model.generate(text, max_new_tokens=30).text for text in texts]
    streams = [model.stream(text, max_new_tokens=30) for text in texts]
    pieces = list(zip(*streams, strict=True))
    assert ["".join(each) for each in zip(*pieces, strict=True)] == expected


def test_threads_that_come_again_and_again_get_what_one_gets(bundles: dict[str, Path]) -> None:
    model, fresh = (load(bundles["unified"], threads=1) for _ in range(2))
    requests = [[prompt(5 + index, seed=index)] * (1 + index % 2) for index in range(12)]
    expected = [tokens(fresh, prompts) for prompts in requests]
    got: dict[int, list[list[tuple[int, ...]]]] = {}

    def work(thread: int) -> None:
        got[thread] = [tokens(model, prompts) for prompts in requests]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {index: expected for index in range(3)}


# --- how a request ended ----------------------------------------------------------------------


def poison(model: Model) -> None:
    with pytest.raises(NumericError):
        model.generate([1, POISON, 2], max_new_tokens=3)


def fail(model: Model) -> None:
    answers = iter([0, 0, 0, 1])
    with pytest.raises(ZeroDivisionError):
        model.generate(prompt(4), cancel=lambda: 1 // (1 - next(answers)) == 0)


def cancel_the_prompt(model: Model) -> None:
    model.generate(prompt(4), cancel=lambda: True)


def cancel_a_step(model: Model) -> None:
    answers = iter([False, False, True])
    model.generate(prompt(4), cancel=lambda: next(answers))


def close(model: Model) -> None:
    with model.stream(prompt(4)) as stream:
        next(stream)
        next(stream)


def drop(model: Model) -> None:
    stream = model.stream(prompt(4))
    next(stream)
    next(stream)


def read_to_the_end(model: Model) -> None:
    assert list(model.stream(prompt(4), max_new_tokens=4))


@pytest.mark.parametrize(
    ("end", "is_kept"),
    [
        (poison, False),
        (fail, False),
        (cancel_the_prompt, False),
        (cancel_a_step, True),
        (close, False),
        (drop, False),
        (read_to_the_end, True),
    ],
)
def test_buffers_are_kept_of_requests_that_came_to_their_end(
    bundles: dict[str, Path], bound: list[int], end: Callable[[Model], None], is_kept: bool
) -> None:
    model = load(bundles["poisoned"], threads=1)
    expected = tokens(model, [prompt(6)])
    end(model)
    bound.clear()
    assert tokens(model, [prompt(6)]) == expected
    assert bound == ([6] if is_kept else [6, 1])


# --- forks ------------------------------------------------------------------------------------

FORK = """
import os, sys
from ortolan.runtime import load, ForkedError
model = load(sys.argv[1], threads=4)
tokens = model.generate([1, 2], max_new_tokens=4).tokens
child = os.fork()
if child == 0:
    for prompt in ([1, 2], [[1, 2], [3]]):
        try:
            model.generate(prompt, max_new_tokens=4)
        except ForkedError:
            continue
        os._exit(3)
    EXIT
_, status = os.waitpid(child, 0)
assert model.generate([1, 2], max_new_tokens=4).tokens == tokens
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_is_refused_what_is_kept_and_exits(
    bundles: dict[str, Path], leave: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("EXIT", leave), str(bundles["unified"])],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")

"""Results of an exact runner depend neither on how a prompt is cut nor on earlier prompts."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import VOCABULARY
from tests.tiny.numbers import random_ids

from ortolan.runtime.engine.attention_kernels import CHUNK
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import GRID, Runner

KINDS = (
    "fp32",
    "recurrent",
    "recurrent-split",
    "by-token",
    "int4",
    "int4-by-token",
    "int8-prefill",
)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("exact")
    # groups of more than 32: kernels for an odd last row add up otherwise
    return {
        kind: Engine(packed_bundles.write(folder / kind, kind, group=64), threads=1)
        for kind in KINDS
    }


def exact_runner(engine: Engine, slots: int = 2, chunk: int = CHUNK) -> Runner:
    return Runner(engine, engine.slots(slots), exact=True, chunk=chunk)


@pytest.mark.parametrize("kind", ["fp32", "int4"])
@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 150), data=st.data())
def test_exact_chunks_compute_the_same_wherever_they_are_cut(
    exact: dict[str, Engine], kind: str, count: int, data: st.DataObject
) -> None:
    tokens = random_ids(count)
    whole, parts = exact_runner(exact[kind]), exact_runner(exact[kind])
    expected = whole.chunk(0, tokens, positions=[count - 1])
    start = 0
    while start < count:
        end = data.draw(st.integers(start + 1, count))
        logits = parts.chunk(1, tokens[start:end], positions=[end - start - 1])
        start = end
    np.testing.assert_array_equal(logits, expected)
    assert parts.slots.lengths[1] == count
    got_buffers = parts.slots.snapshot(row=1).buffers
    for got, want in zip(got_buffers, whole.slots.snapshot().buffers, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 301])
def test_exact_prompts_compute_the_same_after_any_history(
    exact: dict[str, Engine], kind: str, count: int
) -> None:
    tokens, engine = random_ids(count), exact[kind]
    expected = exact_runner(engine).prefill(0, tokens)
    # restore the first blocks into a row that held another prompt
    cached = exact_runner(engine)
    whole = (count - 1) // GRID * GRID
    if whole > 0:
        cached.prefill(0, tokens[:whole])
    runner = exact_runner(engine, chunk=GRID // 2)
    runner.prefill(1, random_ids(200, seed=3))
    runner.restore(cached.slots.snapshot(), row=1)
    np.testing.assert_array_equal(runner.prefill(1, tokens[whole:]), expected)


@pytest.mark.parametrize("kind", ["recurrent", "int8-prefill"])
def test_chunks_end_at_the_grid_if_results_depend_on_them(
    exact: dict[str, Engine], kind: str
) -> None:
    runner = exact_runner(exact[kind], chunk=32)
    sizes = [len(part) for _, part in runner_parts(runner, random_ids(300))]
    assert sizes == [128, 128, 44]


def test_chunks_are_as_large_as_possible_if_results_do_not_depend_on_them(
    exact: dict[str, Engine],
) -> None:
    runner = exact_runner(exact["int4"], chunk=32)
    runner.prefill(0, random_ids(7))
    sizes = [len(part) for _, part in runner_parts(runner, random_ids(60))]
    assert sizes == [32, 28]


def runner_parts(runner: Runner, tokens: list[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Compute a prompt chunk by chunk, and yield the chunks."""
    for start, part in runner.chunks(0, tokens):
        runner.chunk(0, part, positions=[0])
        yield start, part


def test_requested_logits_are_written_in_place(exact: dict[str, Engine]) -> None:
    runner = exact_runner(exact["int4"])
    out = np.zeros((3, VOCABULARY), np.float32)
    logits = runner.chunk(0, random_ids(9), positions=[0, 4, 8], logits_RV=out)
    assert logits.shape == out.shape
    np.testing.assert_array_equal(logits, out)

from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime.bench.cases import Case, cases, check_context
from ortolan.runtime.bench.figures import Generation, case_result, weights
from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads


def matrix(format_: str, count: int, *, is_head: bool = False) -> MatrixRead:
    return MatrixRead(
        name="",
        format=format_,
        stored=format_,
        group=None,
        inputs=count,
        elements=count,
        bytes=count,
        grid_bytes=0,
        is_head=is_head,
    )


READS = StepReads(
    matrices=(matrix("int4", 300), matrix("int4", 200), matrix("int8", 400, is_head=True)),
    other_bytes=50,
    cache_bytes_per_token=10,
    state_bytes=5,
)

GENERATE = Case(kind="tg", tokens=9, depth=5)

BYTES = 950 + 5 + 10 * (5 + 5)
"""Weights, fixed states, and ten tokens of cache after the middle of nine steps at depth 5."""


def generation(bandwidth: float | None, cache_bytes: int | None) -> Generation:
    read = case_result(
        GENERATE, [1.0], READS, bandwidth=bandwidth, cache_bytes=cache_bytes
    ).generation
    assert read is not None
    return read


def test_speeds_are_those_of_each_run_and_not_of_the_mean_time() -> None:
    case = Case(kind="pp", tokens=12)
    result = case_result(case, [1.0, 2.0, 4.0], READS, bandwidth=None, cache_bytes=None)
    speed = result.speed
    assert speed.runs == (12.0, 6.0, 3.0)
    assert (speed.mean, speed.median) == (7.0, 6.0)
    assert speed.deviation == pytest.approx(((25 + 1 + 16) / 2) ** 0.5)
    assert result.generation is None
    speed = case_result(GENERATE, [2.0], READS, bandwidth=None, cache_bytes=None).speed
    assert (speed.mean, speed.deviation) == (4.5, 0.0)


@pytest.mark.parametrize(
    ("bandwidth", "cache", "share", "in_cache"),
    [
        (9 * BYTES * 2, 1, 0.5, False),
        (9 * BYTES * 4, None, 0.25, None),
        (9 * BYTES, 1, 1, False),
        (9 * BYTES - 1, 1, None, False),  # faster than memory
        (9 * BYTES * 2, BYTES - 1, 0.5, False),
        (9 * BYTES * 2, BYTES, None, True),
        (None, 1, None, False),
    ],
)
def test_share_of_the_bandwidth(
    bandwidth: float | None, cache: int | None, share: float | None, in_cache: bool | None
) -> None:
    read = generation(bandwidth, cache)
    assert (read.bytes_per_token, read.bytes_per_second) == (BYTES, 9 * BYTES)
    assert read.bandwidth_share == (None if share is None else pytest.approx(share))
    assert read.in_cache is in_cache


def test_weights_are_summed_by_format() -> None:
    total = weights(READS)
    assert total.formats == {"int4": 500, "int8": 400}
    assert (total.bytes, total.head_bytes, total.other_bytes) == (950, 400, 50)


# --- cases ------------------------------------------------------------------------------------


def test_names_are_those_of_llama_bench() -> None:
    assert Case(kind="pp", tokens=512).name == "pp512"
    assert Case(kind="tg", tokens=128, depth=1024).name == "tg128 @ d1024"


def test_cases_go_through_depths_and_then_kinds() -> None:
    names = [case.name for case in cases([8, 16], [4], [0, 32])]
    assert names == ["pp8", "pp16", "tg4", "pp8 @ d32", "pp16 @ d32", "tg4 @ d32"]


def test_zero_stands_for_none_and_repeated_cases_count_once() -> None:
    assert [case.name for case in cases([0, 8, 8], [0], [2, 2])] == ["pp8 @ d2"]


def test_mean_length_is_that_of_the_steps() -> None:
    # after steps at depth 10 the cache holds 11, 12 and 13 tokens
    assert Case(kind="tg", tokens=3, depth=10).mean_length == 12


def test_cases_beyond_the_context_or_without_tokens_are_rejected(
    snapshot: SnapshotAssertion,
) -> None:
    check_context([Case(kind="pp", tokens=64), Case(kind="tg", tokens=4, depth=60)], 64)
    for chosen in (
        [Case(kind="pp", tokens=4), Case(kind="tg", tokens=5, depth=60)],
        cases([512], [128]),
        [Case(kind="pp", tokens=1, depth=64)],
        *([Case(kind="pp", tokens=n, depth=depth)] for n, depth in ((0, 0), (-1, 0), (1, -1))),
    ):
        assert refusal(partial(check_context, chosen, 64)) == snapshot

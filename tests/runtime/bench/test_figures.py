import pytest

from ortolan.runtime.bench.cases import Case
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


def test_speeds_are_of_each_run_and_not_of_the_mean_time() -> None:
    case = Case(kind="pp", tokens=12)
    result = case_result(case, [1.0, 2.0, 4.0], READS, bandwidth=None, cache_bytes=None)
    speed = result.speed
    assert speed.runs == (12.0, 6.0, 3.0)
    assert (speed.mean, speed.median) == (7.0, 6.0)
    assert speed.deviation == pytest.approx(((25 + 1 + 16) / 2) ** 0.5)


def test_a_single_run_has_no_deviation() -> None:
    speed = case_result(GENERATE, [2.0], READS, bandwidth=None, cache_bytes=None).speed
    assert (speed.mean, speed.deviation) == (4.5, 0.0)


def test_a_prompt_has_no_bytes_per_token() -> None:
    case = Case(kind="pp", tokens=12)
    result = case_result(case, [1.0], READS, bandwidth=1e6, cache_bytes=1)
    assert result.generation is None


def test_the_share_is_of_the_bytes_that_all_tokens_read() -> None:
    read = generation(bandwidth=9 * BYTES * 2, cache_bytes=1)
    assert (read.bytes_per_token, read.bytes_per_second) == (BYTES, 9 * BYTES)
    assert read.bandwidth_share == pytest.approx(0.5)
    assert read.in_cache is False


@pytest.mark.parametrize(("cache", "is_in"), [(BYTES - 1, False), (BYTES, True)])
def test_what_fits_in_the_cache_has_no_share(cache: int, is_in: bool) -> None:
    read = generation(bandwidth=1e9, cache_bytes=cache)
    assert read.in_cache is is_in
    assert (read.bandwidth_share is None) is is_in


def test_more_than_the_bandwidth_is_no_share() -> None:
    assert generation(bandwidth=9 * BYTES - 1, cache_bytes=1).bandwidth_share is None
    assert generation(bandwidth=9 * BYTES, cache_bytes=1).bandwidth_share == 1


def test_an_unknown_cache_leaves_the_share() -> None:
    read = generation(bandwidth=9 * BYTES * 4, cache_bytes=None)
    assert read.in_cache is None
    assert read.bandwidth_share == pytest.approx(0.25)


def test_an_unknown_bandwidth_leaves_the_bytes() -> None:
    read = generation(bandwidth=None, cache_bytes=1)
    assert (read.bytes_per_token, read.bandwidth_share) == (BYTES, None)


def test_weights_are_summed_by_format() -> None:
    total = weights(READS)
    assert total.formats == {"int4": 500, "int8": 400}
    assert (total.bytes, total.head_bytes, total.other_bytes) == (950, 400, 50)

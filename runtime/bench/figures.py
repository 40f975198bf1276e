"""Figures of a benchmark, computed from seconds and bytes."""

import statistics
from typing import Literal

import msgspec

from ortolan.runtime.bench.cases import Case
from ortolan.runtime.inspect.advice import Advice
from ortolan.runtime.inspect.step_reads import StepReads
from ortolan.runtime.machine.bandwidth import Bandwidth

__all__ = [
    "CaseResult",
    "Generation",
    "Result",
    "Speed",
    "WeightReads",
    "case_result",
    "weights",
]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second.

    Attributes:
        mean: mean of the runs.
        deviation: sample standard deviation; 0 for a single run.
        median: median of the runs.
        runs: every run.
    """

    mean: float
    deviation: float
    median: float
    runs: tuple[float, ...]


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Memory traffic of decode steps.

    Attributes:
        bytes_per_token: weights and KV cache that a step reads on average.
        bytes_per_second: bytes per second at the mean speed.
        bandwidth_share: share of the measured bandwidth; `None` if that is meaningless.
        in_cache: whether all these bytes fit into the processor's cache; `None` if unknown.
    """

    bytes_per_token: float
    bytes_per_second: float
    bandwidth_share: float | None
    in_cache: bool | None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one case; only `tg` has `generation`."""

    name: str
    kind: Literal["pp", "tg"]
    tokens: int
    depth: int
    speed: Speed
    generation: Generation | None


class WeightReads(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a decode step reads.

    Attributes:
        bytes: bytes of all weights.
        formats: bytes of matrices by format.
        head_bytes: bytes of the matrix that computes the logits, which is among them.
        other_bytes: bytes of table rows, norms and biases.
    """

    bytes: int
    formats: dict[str, int]
    head_bytes: int
    other_bytes: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a benchmark.

    Attributes:
        model_type: family of the model.
        precision: type of its weights.
        device: device in use.
        threads: threads in use.
        physical_cores: cores that this process may use.
        repetitions: counted runs per case.
        cases: figures by case.
        weights: weights that a step reads.
        cache_bytes_per_token: KV cache per token.
        bandwidth: memory bandwidth with as many threads; `None` if not measured (see `notes`).
        last_level_cache_bytes: size of the processor's cache; `None` if unknown.
        peak_memory_bytes: peak resident memory of this process, without measuring the bandwidth;
            `None` on Windows.
        notes: remarks about the figures.
        advice: ways to make it faster.
    """

    model_type: str
    precision: str
    device: str
    threads: int
    physical_cores: int
    repetitions: int
    cases: tuple[CaseResult, ...]
    weights: WeightReads
    cache_bytes_per_token: int
    bandwidth: Bandwidth | None
    last_level_cache_bytes: int | None
    peak_memory_bytes: int | None
    notes: tuple[str, ...]
    advice: tuple[Advice, ...]


def case_result(
    case: Case,
    seconds: list[float],
    reads: StepReads,
    *,
    bandwidth: float | None,
    cache_bytes: int | None,
) -> CaseResult:
    """Compute the figures of a case.

    Args:
        case: the case.
        seconds: seconds of each counted run, at least one.
        reads: bytes that a step reads.
        bandwidth: memory bandwidth in bytes per second; `None` if not measured.
        cache_bytes: size of the last-level cache; `None` if unknown.
    """
    runs = tuple(case.tokens / elapsed for elapsed in seconds)
    speed = Speed(
        mean=statistics.fmean(runs),
        deviation=statistics.stdev(runs) if len(runs) > 1 else 0.0,
        median=statistics.median(runs),
        runs=runs,
    )
    generation = None
    if case.kind == "tg":
        count = reads.bytes_at(case.mean_length)
        in_cache = None if cache_bytes is None else count <= cache_bytes
        share = None if bandwidth is None or in_cache else count * speed.mean / bandwidth
        generation = Generation(
            bytes_per_token=count,
            bytes_per_second=count * speed.mean,
            # faster than memory: part of it came from a cache
            bandwidth_share=None if share is None or share > 1 else share,
            in_cache=in_cache,
        )
    return CaseResult(
        name=case.name,
        kind=case.kind,
        tokens=case.tokens,
        depth=case.depth,
        speed=speed,
        generation=generation,
    )


def weights(reads: StepReads) -> WeightReads:
    """Sum the weights that a step reads."""
    formats: dict[str, int] = {}
    for matrix in reads.matrices:
        formats[matrix.format] = formats.get(matrix.format, 0) + matrix.bytes
    return WeightReads(
        bytes=reads.weight_bytes,
        formats=formats,
        head_bytes=sum(matrix.bytes for matrix in reads.matrices if matrix.is_head),
        other_bytes=reads.other_bytes,
    )

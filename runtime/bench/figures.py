"""The figures of a benchmark, and how they follow from seconds and bytes."""

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
    """Tokens per second over the repetitions.

    Attributes:
        deviation: of the sample; 0 for a single run.
    """

    mean: float
    deviation: float
    median: float
    runs: tuple[float, ...]


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What generating reads.

    Attributes:
        bytes_per_token: weights, and the cache up to the length, which grows: the mean.
        bytes_per_second: at the mean speed.
        bandwidth_share: of the measured bandwidth; `None` where that says nothing.
        in_cache: whether the processor's cache keeps all these bytes; `None` if unknown.
    """

    bytes_per_token: float
    bytes_per_second: float
    bandwidth_share: float | None
    in_cache: bool | None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one case; `generation` is there for `tg`."""

    name: str
    kind: Literal["pp", "tg"]
    tokens: int
    depth: int
    speed: Speed
    generation: Generation | None


class WeightReads(msgspec.Struct, frozen=True, kw_only=True):
    """What a token reads of the weights.

    Attributes:
        formats: bytes of products by the format they are read in.
        head_bytes: of the product that gives the logits, which is among them.
        other_bytes: rows of tables, norms, biases.
    """

    bytes: int
    formats: dict[str, int]
    head_bytes: int
    other_bytes: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        bandwidth: of reading memory with as many threads; `None` where it was not measured,
            and then `notes` says why.
        last_level_cache_bytes: of the processor; `None` if unknown.
        peak_memory_bytes: largest resident memory of this process, without what measuring the
            bandwidth took; `None` on systems that do not say (Windows).
        notes: what to know about the figures.
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
    """Turn the seconds of each run of a case into its figures.

    Args:
        case: what was measured.
        seconds: of each counted run, at least one.
        reads: what a step reads.
        bandwidth: of the memory, in bytes per second; `None` where it was not measured.
        cache_bytes: of the processor's last-level cache; `None` if unknown.
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
            # more than memory gives: a part of it came from a cache
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
    """Sum up the weights that a step reads."""
    formats: dict[str, int] = {}
    for matrix in reads.matrices:
        formats[matrix.format] = formats.get(matrix.format, 0) + matrix.bytes
    return WeightReads(
        bytes=reads.weight_bytes,
        formats=formats,
        head_bytes=sum(matrix.bytes for matrix in reads.matrices if matrix.is_head),
        other_bytes=reads.other_bytes,
    )

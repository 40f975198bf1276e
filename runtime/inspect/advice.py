"""What would make a bundle faster here, or smaller, with bounds that follow from counted bytes.

A step that reads half of the bytes is at most twice as fast: bounds are of that kind, and promise
nothing. What has no bound comes without one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads

__all__ = ["Advice", "Facts", "advise"]

WORTH_SAYING = 1.05
"""Smallest bound; below it nobody would notice."""

NEAR_THE_BANDWIDTH = 0.8
"""Share of the bandwidth from which on reading is what takes the time."""

GROUP = 128
"""Values that share a scale below a head of 8 bits, unless an export is told otherwise."""

SCALE_BYTES = 4

_FLOATS = ("fp32", "fp16", "bf16")


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do, or to know.

    Attributes:
        at_most: times as fast it can get; `None` where nothing bounds it.
    """

    rule: str
    text: str
    at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules look at.

    Attributes:
        length: tokens in the cache of the steps that are judged; `None` where no step of one
            token was measured, and its bytes do not matter.
        share: of the bandwidth, reached when generating; `None` where it says nothing.
        in_cache: whether the processor's cache keeps all that a step reads, so that bytes say
            nothing about time.
        is_packed: whether the kernels' own form of the weights is mapped from a file; `None` on
            devices that have none.
    """

    reads: StepReads
    length: float | None
    threads: int
    physical_cores: int
    share: float | None
    in_cache: bool
    is_packed: bool | None


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Say what would help; no two of these propose the same for the same matrix."""
    found: list[Advice | None] = []
    if facts.length is not None and not facts.in_cache:
        found += _about_bytes(facts, facts.length)
    found += _about_threads(facts)
    found += _about_memory(facts)
    return tuple(
        advice
        for advice in found
        if advice is not None and (advice.at_most is None or advice.at_most >= WORTH_SAYING)
    )


# --- what a token reads ---------------------------------------------------------------------------


def _about_bytes(facts: Facts, length: float) -> Iterator[Advice | None]:
    """What matrices could be shorter."""
    matrices, now = facts.reads.matrices, facts.reads.bytes_at(length)

    def shorter(
        rule: str,
        chosen: Sequence[MatrixRead],
        becomes: Callable[[MatrixRead], float],
        what: str,
        do: str,
    ) -> Advice | None:
        if not chosen:
            return None
        part = sum(matrix.bytes for matrix in chosen)
        after = now - part + sum(map(becomes, chosen))
        return Advice(
            rule=rule,
            text=f"{what}: {_mega(part)} of {_mega(now)} per token. "
            f"{do}: {_mega(after)} per token, at most {now / after:.2f} times as fast.",
            at_most=now / after,
        )

    floats = [matrix for matrix in matrices if matrix.format in _FLOATS]
    formats = _formats(floats)
    if len(floats) == len(matrices):
        what, do = f"weights in {formats}", "Export with --precision int4"
        yield shorter("float weights", floats, _quantized, what, do)
    else:
        is_head = all(matrix.is_head for matrix in floats)
        what = f"{'head' if is_head else f'{len(floats)} matrices'} in {formats}"
        do = "Export without excluding them"
        yield shorter("float weights left", floats, _quantized, what, do)
    int8 = [matrix for matrix in matrices if matrix.format == "int8" and not matrix.is_head]
    do = "Export with --precision int4"
    yield shorter("int8 weights", int8, _quantized, "weights in int8", do)
    small = [matrix for matrix in matrices if _has_small_groups(matrix)]
    groups = sorted({matrix.group or 0 for matrix in small})
    what = f"groups of {' and '.join(map(str, groups))}"
    do = f"Export with --group-size {GROUP}, which rounds more coarsely"
    yield shorter("small groups", small, _with_large_groups, what, do)


def _quantized(matrix: MatrixRead) -> float:
    """Bytes as `--precision int4` stores it: blocks in 4 bits, the head in 8."""
    bits = 8 if matrix.is_head else 4
    return matrix.elements * (bits / 8 + SCALE_BYTES / GROUP)


def _has_small_groups(matrix: MatrixRead) -> bool:
    # an export chooses the groups of the head, whatever those of the blocks are
    if matrix.is_head or matrix.group is None or matrix.group >= GROUP:
        return False
    return _with_large_groups(matrix) < matrix.bytes


def _with_large_groups(matrix: MatrixRead) -> float:
    """The last group of a row is filled up: rows of 576 are shorter in 9 groups of 64."""
    group = matrix.group or GROUP
    now, after = -(-matrix.inputs // group), -(-matrix.inputs // GROUP)
    codes = matrix.bytes - matrix.grid_bytes
    return codes * (after * GROUP) / (now * group) + matrix.grid_bytes * after / now


def _formats(matrices: Sequence[MatrixRead]) -> str:
    """`fp32`, or `fp32 (stored as fp16)` where the kernels of the CPU have widened it."""
    names = dict.fromkeys(
        matrix.format + (f" (stored as {matrix.stored})" if matrix.stored != matrix.format else "")
        for matrix in matrices
    )
    return " and ".join(names)


# --- threads and memory ---------------------------------------------------------------------------


def _about_threads(facts: Facts) -> Iterator[Advice]:
    threads, cores = facts.threads, facts.physical_cores
    if threads < cores:
        yield Advice(
            rule="idle cores",
            text=f"{threads} of {cores} physical cores in use. Choose --threads {cores}: at most "
            f"{cores / threads:.2f} times as fast.",
            at_most=cores / threads,
        )
    if threads > cores:
        yield Advice(
            rule="too many threads",
            text=f"{threads} threads on {cores} physical cores. Compare with --threads {cores}.",
            at_most=None,
        )


def _about_memory(facts: Facts) -> Iterator[Advice]:
    if facts.share is not None and facts.share >= NEAR_THE_BANDWIDTH:
        yield Advice(
            rule="bandwidth",
            text=f"generating reads at {facts.share:.0%} of the bandwidth: only fewer bytes per "
            f"token, or faster memory, make it more than {1 / facts.share:.2f} times as fast.",
            at_most=None,
        )
    if facts.is_packed is False and not facts.in_cache:
        weights = sum(matrix.bytes for matrix in facts.reads.matrices)
        yield Advice(
            rule="not packed",
            text=f"weights not packed: this process keeps a copy of up to {_mega(weights)} as its "
            "kernels want it. `ortolan pack` keeps that in a file which processes share: for "
            "loading and memory, not for speed.",
            at_most=None,
        )


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f} MB"

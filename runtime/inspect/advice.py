"""What would make a bundle faster here, or smaller, with bounds that follow from counted bytes.

A step that reads half of the bytes is at most twice as fast: bounds are of that kind, and promise
nothing. What has no bound comes without one.

Knows what a step reads, and how the model runs. Measures nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads

__all__ = ["RULES", "Advice", "Facts", "Rule", "advise"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One advice and when it holds.

    Attributes:
        applies: whether there is anything to say.
        at_most: the bound; what has one that is not worth it is not said.
        text: what is so, what to do, and what that can bring.
    """

    name: str
    applies: Callable[[Facts], bool]
    at_most: Callable[[Facts], float | None]
    text: Callable[[Facts], str]


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Say what applies, in the order of `RULES`."""
    given = []
    for rule in RULES:
        if rule.applies(facts):
            at_most = rule.at_most(facts)
            if at_most is None or at_most >= WORTH_SAYING:
                given.append(Advice(rule=rule.name, text=rule.text(facts), at_most=at_most))
    return tuple(given)


# --- matrices, and what they could be -----------------------------------------------------------


def _is_float(matrix: MatrixRead) -> bool:
    return matrix.format in _FLOATS


def _is_int8_of_a_block(matrix: MatrixRead) -> bool:
    return matrix.format == "int8" and not matrix.is_head


def _has_small_groups(matrix: MatrixRead) -> bool:
    # an export chooses the groups of the head, whatever those of the blocks are
    if matrix.is_head or matrix.group is None or matrix.group >= GROUP:
        return False
    return _with_large_groups(matrix) < matrix.bytes


def _quantized(matrix: MatrixRead) -> float:
    """Bytes as `--precision int4` stores it: blocks in 4 bits, the head in 8."""
    bits = 8 if matrix.is_head else 4
    return matrix.elements * (bits / 8 + SCALE_BYTES / GROUP)


def _with_large_groups(matrix: MatrixRead) -> float:
    """The last group of a row is filled up: rows of 576 are shorter in 9 groups of 64."""
    group = matrix.group or GROUP
    now, after = -(-matrix.inputs // group), -(-matrix.inputs // GROUP)
    codes = matrix.bytes - matrix.grid_bytes
    return codes * (after * GROUP) / (now * group) + matrix.grid_bytes * after / now


def _all_float(facts: Facts) -> bool:
    return all(map(_is_float, facts.reads.matrices))


def _formats(matrices: list[MatrixRead]) -> str:
    """`fp32`, or `fp32 (stored as fp16)`."""
    names = dict.fromkeys(
        matrix.format
        if matrix.stored == matrix.format
        # the kernels of the CPU have widened it
        else f"{matrix.format} (stored as {matrix.stored})"
        for matrix in matrices
    )
    return " and ".join(names)


def _left_out(matrices: list[MatrixRead]) -> str:
    if all(matrix.is_head for matrix in matrices):
        return f"head in {_formats(matrices)}"
    return f"{len(matrices)} matrices in {_formats(matrices)}"


def _groups(matrices: list[MatrixRead]) -> str:
    return f"groups of {' and '.join(map(str, sorted({m.group or 0 for m in matrices})))}"


def _byte_rule(
    name: str,
    *,
    chosen: Callable[[MatrixRead], bool],
    becomes: Callable[[MatrixRead], float],
    what: Callable[[list[MatrixRead]], str],
    do: str,
    applies: Callable[[Facts], bool] = lambda _: True,
) -> Rule:
    """A rule about the matrices that are `chosen` and could be `becomes` bytes long."""

    def matrices(facts: Facts) -> list[MatrixRead]:
        return [matrix for matrix in facts.reads.matrices if chosen(matrix)]

    def now(facts: Facts) -> float:
        return facts.reads.bytes_at(facts.length or 0)

    def after(facts: Facts) -> float:
        return now(facts) - sum(matrix.bytes - becomes(matrix) for matrix in matrices(facts))

    def text(facts: Facts) -> str:
        part = sum(matrix.bytes for matrix in matrices(facts))
        return (
            f"{what(matrices(facts))}: {_mega(part)} of {_mega(now(facts))} per token. {do}: "
            f"{_mega(after(facts))} per token, at most {now(facts) / after(facts):.2f} times as "
            "fast."
        )

    return Rule(
        name=name,
        applies=lambda facts: (
            facts.length is not None
            and not facts.in_cache
            and bool(matrices(facts))
            and applies(facts)
        ),
        at_most=lambda facts: now(facts) / after(facts),
        text=text,
    )


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


def _matrix_bytes(facts: Facts) -> int:
    return sum(matrix.bytes for matrix in facts.reads.matrices)


# --- the rules ----------------------------------------------------------------------------------


RULES = (
    _byte_rule(
        "float weights",
        chosen=_is_float,
        becomes=_quantized,
        what=lambda matrices: f"weights in {_formats(matrices)}",
        do="Export with --precision int4",
        applies=_all_float,
    ),
    _byte_rule(
        "float weights left",
        chosen=_is_float,
        becomes=_quantized,
        what=_left_out,
        do="Export without excluding them",
        applies=lambda facts: not _all_float(facts),
    ),
    _byte_rule(
        "int8 weights",
        chosen=_is_int8_of_a_block,
        becomes=_quantized,
        what=lambda _: "weights in int8",
        do="Export with --precision int4",
    ),
    _byte_rule(
        "small groups",
        chosen=_has_small_groups,
        becomes=_with_large_groups,
        what=_groups,
        do=f"Export with --group-size {GROUP}, which rounds more coarsely",
    ),
    Rule(
        name="idle cores",
        applies=lambda facts: facts.threads < facts.physical_cores,
        at_most=lambda facts: facts.physical_cores / facts.threads,
        text=lambda facts: (
            f"{facts.threads} of {facts.physical_cores} physical cores in use. Choose "
            f"--threads {facts.physical_cores}: at most "
            f"{facts.physical_cores / facts.threads:.2f} times as fast."
        ),
    ),
    Rule(
        name="too many threads",
        applies=lambda facts: facts.threads > facts.physical_cores,
        at_most=lambda _: None,
        text=lambda facts: (
            f"{facts.threads} threads on {facts.physical_cores} physical cores. Compare with "
            f"--threads {facts.physical_cores}."
        ),
    ),
    Rule(
        name="bandwidth",
        applies=lambda facts: (facts.share or 0) >= NEAR_THE_BANDWIDTH,
        at_most=lambda _: None,
        text=lambda facts: (
            f"generating reads at {facts.share or 0:.0%} of the bandwidth: only fewer bytes per "
            f"token, or faster memory, make it more than {1 / (facts.share or 1):.2f} times as "
            "fast."
        ),
    ),
    Rule(
        name="not packed",
        applies=lambda facts: facts.is_packed is False and not facts.in_cache,
        at_most=lambda _: None,
        text=lambda facts: (
            f"weights not packed: this process keeps a copy of up to {_mega(_matrix_bytes(facts))} "
            "as its kernels want it. `ortolan pack` keeps that in a file which processes share: "
            "for loading and memory, not for speed."
        ),
    ),
)
"""All rules; no two of them propose the same for the same matrix."""

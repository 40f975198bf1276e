"""Advice for a faster or smaller bundle, with upper bounds on the speedup.

Bounds follow from counted bytes: a step that reads half of them is at most twice as fast.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads

__all__ = ["Advice", "Facts", "advise"]

WORTH_SAYING = 1.05
"""Smallest speedup worth mentioning."""

NEAR_THE_BANDWIDTH = 0.8
"""Share of the bandwidth above which a step is limited by memory."""

GROUP = 128
"""Default group size of an export, except for the head."""

SCALE_BYTES = 4

_FLOATS = ("fp32", "fp16", "bf16")

_MINIMUMS = ".minimums"
"""End of the name of what a product adds per group; part of its codes, and always floats."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do or to know.

    Attributes:
        rule: short name.
        text: for a person.
        at_most: upper bound of the speedup, if there is one.
    """

    rule: str
    text: str
    at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Input of the rules.

    Attributes:
        reads: what a decode step reads.
        length: tokens in the KV cache; `None` if no step was measured.
        threads: in use.
        physical_cores: of the machine.
        share: of the memory bandwidth that generation reaches, if known.
        in_cache: whether the processor's cache holds everything a step reads, in which case bytes
            do not limit it.
        is_packed: whether packed weights are mapped from a file; `None` on devices without.
    """

    reads: StepReads
    length: float | None
    threads: int
    physical_cores: int
    share: float | None
    in_cache: bool
    is_packed: bool | None


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Return all advice worth giving. No two entries concern the same matrix."""
    advice: list[Advice | None] = []
    if facts.length is not None and not facts.in_cache:
        advice += _about_bytes(facts, facts.length)
    advice += _about_threads(facts)
    advice += _about_memory(facts)
    return tuple(
        entry
        for entry in advice
        if entry is not None and (entry.at_most is None or entry.at_most >= WORTH_SAYING)
    )


# --- bytes per token ------------------------------------------------------------------------------


def _about_bytes(facts: Facts, length: float) -> Iterator[Advice | None]:
    matrices, now = facts.reads.matrices, facts.reads.bytes_at(length)

    def shorter(
        rule: str,
        chosen: Sequence[MatrixRead],
        new_bytes: Callable[[MatrixRead], float],
        finding: str,
        remedy: str,
    ) -> Advice | None:
        if not chosen:
            return None
        part = sum(matrix.bytes for matrix in chosen)
        after = now - part + sum(map(new_bytes, chosen))
        return Advice(
            rule=rule,
            text=f"{finding}: {_mega(part)} of {_mega(now)} per token. "
            f"{remedy}: {_mega(after)} per token, at most {now / after:.2f} times as fast.",
            at_most=now / after,
        )

    weights = [matrix for matrix in matrices if not matrix.name.endswith(_MINIMUMS)]
    floats = [matrix for matrix in weights if matrix.format in _FLOATS]
    formats = _formats(floats)
    if len(floats) == len(weights):
        finding = f"weights in {formats}"
        yield shorter("float weights", floats, _quantized, finding, "Export with --precision int4")
    else:
        is_head = all(matrix.is_head for matrix in floats)
        finding = f"{'head' if is_head else f'{len(floats)} matrices'} in {formats}"
        remedy = "Export without excluding them"
        yield shorter("float weights left", floats, _quantized, finding, remedy)
    int8 = [matrix for matrix in matrices if matrix.format == "int8" and not matrix.is_head]
    remedy = "Export with --precision int4"
    yield shorter("int8 weights", int8, _quantized, "weights in int8", remedy)
    small = [matrix for matrix in matrices if _has_small_groups(matrix)]
    groups = sorted({matrix.group or 0 for matrix in small})
    finding = f"groups of {' and '.join(map(str, groups))}"
    remedy = f"Export with --group-size {GROUP}, which rounds more coarsely"
    yield shorter("small groups", small, _with_large_groups, finding, remedy)


def _quantized(matrix: MatrixRead) -> float:
    """Return the bytes with `--precision int4`: 4 bits in blocks, 8 in the head."""
    bits = 8 if matrix.is_head else 4
    return matrix.elements * (bits / 8 + SCALE_BYTES / GROUP)


def _has_small_groups(matrix: MatrixRead) -> bool:
    # --group-size does not change the head
    if matrix.is_head or matrix.group is None or matrix.group >= GROUP:
        return False
    return _with_large_groups(matrix) < matrix.bytes


def _with_large_groups(matrix: MatrixRead) -> float:
    """Return the bytes with large groups. The last group is padded: 576 = 9 x 64 but 5 x 128."""
    group = matrix.group or GROUP
    now, after = -(-matrix.inputs // group), -(-matrix.inputs // GROUP)
    codes = matrix.bytes - matrix.grid_bytes
    return codes * (after * GROUP) / (now * group) + matrix.grid_bytes * after / now


def _formats(matrices: Sequence[MatrixRead]) -> str:
    """Return `fp32`, or `fp32 (stored as fp16)` if the CPU's kernels widened it."""
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
            text=f"weights not packed: this process keeps a copy of up to {_mega(weights)} in the "
            "layout of its kernels. `ortolan pack` writes it to a file that processes share, which "
            "saves loading time and memory.",
            at_most=None,
        )


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f} MB"

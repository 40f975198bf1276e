"""Times several ways to compute the same, in turn, each round with another input."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

Seconds = dict[str, list[float]]
"""Times of every round, by way."""


def in_turn(
    ways: Mapping[str, Callable[[T], object]],
    made: Callable[[np.random.Generator], T],
    *,
    rounds: int,
) -> Seconds:
    """Time every way on inputs that it has not seen, after a round to warm up.

    Args:
        ways: compute something of an input.
        made: makes an input.
        rounds: number of times.
    """
    seconds: Seconds = {name: [] for name in ways}
    for turn in range(rounds + 1):
        given = made(np.random.default_rng(turn))
        for name, compute in ways.items():
            began = time.perf_counter()
            compute(given)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def rows(
    seconds: Seconds, *, reference: str, extra: Callable[[float], Any] | None = None
) -> list[str]:
    """Rows of a table: name, median and range in ms, and the median ratio to a reference.

    Args:
        seconds: from `in_turn`.
        reference: the way to compare with.
        extra: one more cell before the ratio, from the median seconds.
    """
    lines = []
    for name, measured in seconds.items():
        typical = median(measured)
        ratio = median(b / a for a, b in zip(measured, seconds[reference], strict=True))
        cells = [name, f"{1000 * typical:.0f}"]
        cells.append(f"{1000 * min(measured):.0f} to {1000 * max(measured):.0f}")
        cells += [] if extra is None else [f"{extra(typical)}"]
        lines.append(f"| {' | '.join([*cells, f'{ratio:.2f}'])} |")
    return lines

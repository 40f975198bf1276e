"""Chooses one of several forms for every weight, by bytes and effect on the output.

A greedy solution of a knapsack problem, from the fewest bytes up. It assumes that effects add up,
which errors of independent weights do to second order (Dong et al. 2019, "HAWQ",
https://arxiv.org/abs/1905.03696; Yao et al. 2021, "HAWQ-V3", https://arxiv.org/abs/2011.10680).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Form(NamedTuple):
    """A way to store a weight: its size, and the divergence of the output."""

    bytes: int
    effect: float


class _Step(NamedTuple):
    """A step from one form of a weight to a larger one with less effect.

    Attributes:
        worth: effect saved per byte.
    """

    worth: float
    weight: int
    start: int
    stop: int
    more_bytes: int
    saved: float


def fewest_bytes(weights: Sequence[Sequence[Form]], effect: float) -> list[int]:
    """The form of each weight, of the smallest first: the fewest bytes within a sum of effects.

    If it cannot be met, every weight gets its least effect.
    """
    chosen = [0] * len(weights)
    total = sum(forms[0].effect for forms in weights)
    taken = []
    for step in _steps(weights):
        if total <= effect:
            break
        taken.append(step)
        chosen[step.weight] = step.stop
        total -= step.saved
    # The last step may save so much that earlier ones are not needed.
    for step in reversed(taken):
        without = total + step.saved
        if chosen[step.weight] == step.stop and without <= effect:
            chosen[step.weight], total = step.start, without
    return chosen


def least_effect(weights: Sequence[Sequence[Form]], size: int) -> list[int]:
    """The form of each weight, of the smallest first: the least effect within a number of bytes.

    If it cannot be met, every weight gets its smallest form.
    """
    chosen = [0] * len(weights)
    total = sum(forms[0].bytes for forms in weights)
    for step in _steps(weights):
        if chosen[step.weight] == step.start and total + step.more_bytes <= size:
            chosen[step.weight] = step.stop
            total += step.more_bytes
    return chosen


def _steps(weights: Sequence[Sequence[Form]]) -> list[_Step]:
    """All useful steps, the one that saves most per byte first.

    The steps of a weight follow the lower convex hull of its forms, so that they are sorted in the
    order in which they can be taken.
    """
    steps = []
    for number, forms in enumerate(weights):
        start = 0
        while True:
            first = forms[start]
            ahead = [
                _Step(saved / more if more else math.inf, number, start, stop, more, saved)
                for stop, form in enumerate(forms)
                for more, saved in [(form.bytes - first.bytes, first.effect - form.effect)]
                if more >= 0 and saved > 0
            ]
            best = max(ahead, default=None)
            if best is None:
                break
            steps.append(best)
            start = best.stop
    return sorted(steps, key=lambda step: -step.worth)

"""Which of several forms each weight takes, by its bytes and its effect on the output.

Effects add up: to second order, errors of different weights that do not depend on each other do
(Dong et al. 2019, "HAWQ", https://arxiv.org/abs/1905.03696; Yao et al. 2021, "HAWQ-V3",
https://arxiv.org/abs/2011.10680, choose bits by such a sum under a bound). What is chosen is the
greedy answer to this knapsack problem, from the fewest bytes up.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Form(NamedTuple):
    """A way to store a weight.

    Attributes:
        bytes: of what is stored.
        effect: on the output.
    """

    bytes: int
    effect: float


class _Step(NamedTuple):
    """From one form of a weight to a larger one that is nearer."""

    worth: float
    weight: int
    start: int
    stop: int


def fewest_bytes(weights: Sequence[Sequence[Form]], effect: float) -> list[int]:
    """The place of each weight's form, such that the sum of effects stays within a bound.

    Args:
        weights: the forms of each, the smallest first.
        effect: the bound; where nothing keeps it, every weight has its least effect.
    """
    chosen = [0] * len(weights)
    total = sum(forms[0].effect for forms in weights)
    taken = []
    for step in _steps(weights):
        if total <= effect:
            break
        taken.append(step)
        chosen[step.weight] = step.stop
        total += _change(weights, step).effect
    # The last one may have saved so much that some before it are not needed.
    for step in reversed(taken):
        without = total - _change(weights, step).effect
        if chosen[step.weight] == step.stop and without <= effect:
            chosen[step.weight], total = step.start, without
    return chosen


def least_effect(weights: Sequence[Sequence[Form]], size: int) -> list[int]:
    """The place of each weight's form, such that all of them take at most so many bytes.

    Args:
        weights: the forms of each, the smallest first.
        size: the bound; where nothing keeps it, every weight has its smallest form.
    """
    chosen = [0] * len(weights)
    total = sum(forms[0].bytes for forms in weights)
    for step in _steps(weights):
        grown = total + _change(weights, step).bytes
        if chosen[step.weight] == step.start and grown <= size:
            chosen[step.weight], total = step.stop, grown
    return chosen


def _change(weights: Sequence[Sequence[Form]], step: _Step) -> Form:
    before, after = (weights[step.weight][place] for place in (step.start, step.stop))
    return Form(after.bytes - before.bytes, after.effect - before.effect)


def _steps(weights: Sequence[Sequence[Form]]) -> list[_Step]:
    """Every step that can pay, the one that saves most for a byte first.

    Of each weight, steps are those along the lower convex hull of its forms, so that they come in
    the order in which they can be taken.
    """
    steps = []
    for number, forms in enumerate(weights):
        start = 0
        while True:
            first = forms[start]
            ahead = [
                _Step(_worth(first, form), number, start, stop)
                for stop, form in enumerate(forms)
                if form.bytes >= first.bytes and form.effect < first.effect
            ]
            best = max(ahead, default=None)
            if best is None:
                break
            steps.append(best)
            start = best.stop
    return sorted(steps, key=lambda step: -step.worth)


def _worth(before: Form, after: Form) -> float:
    """The effect that each byte saves."""
    more = after.bytes - before.bytes
    return (before.effect - after.effect) / more if more else math.inf

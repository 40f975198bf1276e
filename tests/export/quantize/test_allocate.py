"""Greedy choices against all combinations of small problems."""

import itertools
import random
from collections.abc import Sequence

import pytest

from ortolan.export.quantize.allocate import Form, fewest_bytes, least_effect

WEIGHTS = [
    [Form(10, 8.0), Form(12, 5.0), Form(20, 0.1)],
    [Form(10, 1.0), Form(12, 0.6), Form(20, 0.0)],
    [Form(50, 2.0), Form(60, 1.9), Form(100, 0.0)],
]


def drawn(seed: int, count: int = 5) -> list[list[Form]]:
    """Forms with more bytes and less error."""
    chance = random.Random(seed)
    weights = []
    for _ in range(count):
        size, effect = chance.randint(50, 100), chance.random()
        weights.append(
            [Form(size, effect), Form(size * 9 // 8, effect * 0.6), Form(size * 2, effect / 256)]
        )
    return weights


def total(weights: Sequence[Sequence[Form]], places: Sequence[int]) -> Form:
    chosen = [forms[place] for forms, place in zip(weights, places, strict=True)]
    return Form(sum(form.bytes for form in chosen), sum(form.effect for form in chosen))


def combinations(weights: Sequence[Sequence[Form]]) -> list[Form]:
    places = itertools.product(*(range(len(forms)) for forms in weights))
    return [total(weights, each) for each in places]


LARGE_LAST = [[Form(1, 0.5), Form(2, 0.1)], [Form(100, 9.0), Form(200, 0.0)]]


@pytest.mark.parametrize(
    ("weights", "effect", "expected"),
    [
        (WEIGHTS, 11.0, [0, 0, 0]),
        (WEIGHTS, 8.0, [1, 0, 0]),
        (WEIGHTS, 3.2, [2, 0, 0]),
        (WEIGHTS, 0.1, [2, 2, 2]),
        (WEIGHTS, 0.0, [2, 2, 2]),  # impossible: the least effect
        (LARGE_LAST, 0.6, [0, 1]),  # a large last step makes a small one needless
    ],
)
def test_fewest_bytes_that_keep_a_bound(
    weights: list[list[Form]], effect: float, expected: list[int]
) -> None:
    assert fewest_bytes(weights, effect) == expected


FREE = [[Form(1, 9.0), Form(2, 0.0)], [Form(1, 0.5), Form(1, 0.4)]]


@pytest.mark.parametrize(
    ("weights", "size", "expected"),
    [
        (WEIGHTS, 10, [0, 0, 0]),  # impossible: the fewest bytes
        (WEIGHTS, 71, [0, 0, 0]),
        (WEIGHTS, 72, [1, 0, 0]),
        (WEIGHTS, 80, [2, 0, 0]),
        (WEIGHTS, 140, [2, 2, 2]),
        (WEIGHTS, 1000, [2, 2, 2]),
        (FREE, 2, [0, 1]),  # what costs no bytes comes first
        ([[Form(1, 0.5), Form(2, 0.5), Form(3, 0.7)]], 10, [0]),  # no nearer form is taken
    ],
)
def test_least_effect_in_a_size(weights: list[list[Form]], size: int, expected: list[int]) -> None:
    assert least_effect(weights, size) == expected


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_at_most_one_step_from_the_best_of_all(seed: int) -> None:
    weights = drawn(seed)
    smallest = total(weights, [0] * len(weights))
    effect, size = smallest.effect * 0.4, int(smallest.bytes * 1.4)
    kept = total(weights, fewest_bytes(weights, effect))
    best = min(form.bytes for form in combinations(weights) if form.effect <= effect)
    assert kept.effect <= effect
    assert kept.bytes <= best + max(forms[2].bytes - forms[0].bytes for forms in weights)
    within = total(weights, least_effect(weights, size))
    least = min(form.effect for form in combinations(weights) if form.bytes <= size)
    assert within.bytes <= size
    assert within.effect <= least + max(forms[0].effect for forms in weights)

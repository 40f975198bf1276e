"""Compares answers."""

from typing import Any

import numpy as np
import pytest

from ortolan.export.witness.compare import Beginning, Comparison, Either


def compared(ours: Any, theirs: Any, tolerance: float = 1e-4) -> Comparison:
    comparison = Comparison(tolerance)
    comparison.compare(ours, theirs)
    return comparison


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ("a text", "a text"),
        ({"ids": [1], "text": "a"}, {"text": "a", "ids": [1]}),
        ((1, 2), [1, 2]),
        (None, None),
        (np.array([1.0, 100.0]), np.array([1.005, 100.0])),
        (0.5, 0.50001),
        ({"rare": 1e-7}, {"rare": 2e-7}),
        (np.array([-np.inf, 1.0]), np.array([-np.inf, 1.0])),
        (np.zeros(3), np.zeros(3)),
        ([7, 8, 9], Beginning([7, 8])),
        ([7, 8], Beginning()),
        ([7, 8], Either([7, 8], list)),
        ([7, 8], Either([7, 9], lambda: [7, 8])),
    ],
)
def test_equal_answers(ours: Any, theirs: Any) -> None:
    assert compared(ours, theirs).first is None


@pytest.mark.parametrize(
    ("ours", "theirs", "where"),
    [
        ([1, 2, 3], [1, 5, 3], "[1]"),
        ([7, 8], Either([6, 8], lambda: [7, 9]), "[1]"),
        ([1, 2], [1, 2, 3], ""),
        ({"ids": [1, 2]}, {"ids": [1, 3]}, "ids[1]"),
        ({"ids": [1]}, {"ids": [1], "types": [0]}, "types"),
        ({"ids": [1], "types": [0]}, {"ids": [1]}, "types"),
        (None, 3, ""),
        ([], None, ""),
        (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.1, 4.0]]), "[1, 0]"),
        (np.array([1.0]), np.array([1.0, 2.0]), ""),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "[1]"),
        (np.array([1.0, 2.0]), np.array([1.0, -np.inf]), "[1]"),
        (0.5, 0.6, ""),
        (-11.0, -11.01, ""),
        ([7, 9], Beginning([7, 8]), "[1]"),
        ([7], Beginning([7, 8]), ""),
    ],
)
def test_the_first_difference_is_named(ours: Any, theirs: Any, where: str) -> None:
    first = compared(ours, theirs).first
    assert first is not None
    assert first.where == where


def test_long_texts_are_shown_where_they_differ() -> None:
    first = compared("x" * 500 + "a tail", "x" * 500 + "b tail").first
    assert first is not None
    assert "a tail" in first.ours
    assert "b tail" in first.theirs
    assert len(first.ours) < 100


def test_numbers_are_compared_relative_to_the_largest() -> None:
    comparison = compared(np.array([10.0, 0.001]), np.array([10.0, 0.002]))
    assert comparison.first is None
    assert comparison.largest == pytest.approx(1e-4)


@pytest.mark.parametrize(("theirs", "is_same"), [(0.0101295, True), (0.0104, False)])
def test_a_score_near_0_that_is_alone_may_be_rounded(theirs: float, is_same: bool) -> None:
    comparison = Comparison(2e-4)
    comparison.compare(np.array([[0.0101316]]), np.array([[theirs]]))
    assert (comparison.first is None) == is_same


def test_numbers_of_rounded_weights_are_not_compared() -> None:
    comparison = compared({"score": 0.1, "ids": [1]}, {"score": 0.9, "ids": [1]}, np.inf)
    assert comparison.first is None
    assert comparison.largest is None

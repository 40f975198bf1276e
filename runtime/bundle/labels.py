"""Scores of labels, from the numbers that a graph returns."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.kinds import ScoreFunction


def scores_of(numbers_L: NDArray[Any], function: ScoreFunction) -> NDArray[np.float64]:
    """Turn the numbers of one input into scores, `(L,)`."""
    return _FUNCTIONS[function](numbers_L.astype(np.float64))


def named_scores(
    numbers_L: NDArray[Any], function: ScoreFunction, labels: Sequence[str]
) -> dict[str, float]:
    """Return the scores of one input by label, highest first."""
    return ranked(scores_of(numbers_L, function), labels)


def ranked(scores_L: NDArray[np.float64], labels: Sequence[str]) -> dict[str, float]:
    """Return scores by label, highest first."""
    order = np.argsort(-scores_L, kind="stable")
    return {labels[index]: float(scores_L[index]) for index in order}


def distinct(labels: Sequence[str]) -> list[str]:
    """Make labels unique by appending the index to repeated ones."""
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} ({index})" for index, label in enumerate(labels)
    ]


def _softmax(logits_L: NDArray[np.float64]) -> NDArray[np.float64]:
    # a single label competes with its absence, whose logit is 0
    all_L = logits_L if len(logits_L) > 1 else np.append(logits_L, 0.0)
    odds_L = np.exp(all_L - all_L.max())
    shares_L: NDArray[np.float64] = (odds_L / odds_L.sum())[: len(logits_L)]
    return shares_L


def _sigmoid(logits_L: NDArray[np.float64]) -> NDArray[np.float64]:
    # exp of a negative number only, which cannot overflow
    small_L = np.exp(-np.abs(logits_L))
    return np.where(logits_L >= 0, 1.0, small_L) / (1.0 + small_L)


_FUNCTIONS: Mapping[ScoreFunction, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "none": lambda numbers_L: numbers_L,
}

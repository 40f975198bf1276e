"""Truncation of a distribution: the candidates that top-k, top-p and min-p keep.

Shape letters: V vocabulary, N candidates.
"""

import numpy as np
from numpy.typing import NDArray


def keep_top_k(scores_V: NDArray[np.float32], top_k: int) -> NDArray[np.intp]:
    """Return the ids of the `top_k` highest scores, ascending, ties with the last included."""
    least = scores_V.size - top_k
    return np.flatnonzero(scores_V >= np.partition(scores_V, least)[least])


def keep_top_p(weights_N: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Return the indices of the fewest weights whose sum reaches `top_p` of the total.

    The first ones win ties. At least one weight is above 0, and `top_p` is below 1.
    """
    total = weights_N.sum()
    # weights up to (1 - top_p) / N of the total are never kept, so do not sort them;
    # half of that leaves room for rounding
    floor = (1 - top_p) / 2 * total / weights_N.size
    sums = np.cumsum(descending := np.sort(weights_N[weights_N > floor])[::-1])
    count = min(1 + int(np.searchsorted(sums, top_p * total)), descending.size)
    last = descending[count - 1]
    above = np.flatnonzero(weights_N > last)
    equal = np.flatnonzero(weights_N == last)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def keep_min_p(weights_N: NDArray[np.float64], min_p: float) -> NDArray[np.intp]:
    """Return the indices of weights of at least `min_p` times the highest."""
    return np.flatnonzero(weights_N >= min_p * weights_N.max())

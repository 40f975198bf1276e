"""The few tokens of a large vocabulary that matter, found without exact work on all of it.

What these functions give is what the plain formulas in `ortolan.runtime.generation.sampling` give,
to the bit: they compute roughly on the whole row and exactly on what is left, and where rounding
could make a difference they give up, so that the plain formula decides.

Shape letters: V vocabulary, N candidates that are left.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw", "exact_weights", "highest", "likely", "nucleus"]

BLOCK = 256
"""Entries that one sum or maximum stands for."""

_SMALL = 4096
"""Below so many entries the plain formulas are quicker."""

_MANY = 2
"""Where one in so many entries matters or more, there is little to leave out."""

_SAMPLED = 16
"""One in so many entries is looked at first."""

_TEMPERATURES = (1e-3, 1e3)
"""Of float32: far outside, quotients leave its range."""

_ROUGH = 2e-5
"""Relative error of a float32 weight: that of its exponent, up to 88 * 2**-23, and some more."""

_FINE = 1e-11
"""Relative error of sums of float64 weights, whatever their order, and some more."""


def exact_weights(
    scores_N: NDArray[np.float32], top: float, temperature: float
) -> NDArray[np.float64]:
    """Return probabilities up to a common factor: 1 for a score of `top`."""
    weights_N = scores_N.astype(np.float64)  # then in place: fresh memory is what costs here
    weights_N -= top
    with np.errstate(over="ignore"):  # at tiny temperatures all but the highest go to -inf
        weights_N /= temperature
    np.exp(weights_N, out=weights_N)
    return weights_N


def highest(scores_V: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return ids, ascending, among which are those of all scores up to the `count` highest.

    Args:
        scores_V: `(V,)`, none of them NaN.
        count: at least 1.
    """
    blocks = scores_V.size // BLOCK
    if count >= blocks:
        return np.arange(scores_V.size)
    # the count-th highest of the blocks' maxima is no higher than the count-th of all
    tops = scores_V[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
    return np.flatnonzero(scores_V >= np.partition(tops, blocks - count)[blocks - count])


def likely(
    scores_V: NDArray[np.float32], top: float, temperature: float, min_p: float
) -> NDArray[np.intp]:
    """Return ids, ascending, among which are all of weights of at least `min_p`."""
    least = top + temperature * math.log(min_p)
    with np.errstate(over="ignore"):
        bound = np.float32(least - 1e-5 * max(1.0, abs(top), abs(least)))
    return np.flatnonzero(scores_V >= bound)


def nucleus(
    scores_V: NDArray[np.float32], top: float, temperature: float, top_p: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]] | None:
    """Return the fewest tokens whose share reaches `top_p`, ids ascending, and their weights.

    Among equal weights the first are kept. `None` where it takes the plain formula.
    """
    coldest, hottest = _TEMPERATURES
    if scores_V.size < _SMALL or not coldest <= temperature <= hottest:
        return None
    with np.errstate(over="ignore"):
        rough_V = np.subtract(scores_V, np.float32(top))
        rough_V /= np.float32(temperature)
    np.exp(rough_V, out=rough_V)
    rough_total = float(rough_V.sum(dtype=np.float64))
    # the rest is many small weights, which a part of them tells enough of
    sample_S = np.sort(rough_V[::_SAMPLED])
    sums_S = _SAMPLED * np.cumsum(sample_S, dtype=np.float64)
    for share in (1 / 2, 1 / 16):
        place = int(np.searchsorted(sums_S, share * (1 - top_p) * rough_total))
        if (sample_S.size - place) * _MANY > sample_S.size:
            return None
        floor = sample_S[min(place, sample_S.size - 1)]
        is_kept_V = rough_V > floor
        ids_N = np.flatnonzero(is_kept_V)
        weights_N = exact_weights(scores_V[ids_N], top, temperature)
        rest = max(0.0, rough_total - float(rough_V[ids_N].sum(dtype=np.float64)))
        total = float(weights_N.sum()) + rest
        error = _ROUGH * rest + _FINE * total
        descending = np.sort(weights_N)[::-1]
        sums = np.cumsum(descending)
        fewest, most = np.searchsorted(sums, [top_p * (total - error), top_p * (total + error)])
        if most >= sums.size:
            continue  # not enough of them
        last = descending[fewest]
        if fewest != most or last < (1 + 4 * _ROUGH) * float(floor):
            return None
        above = np.flatnonzero(weights_N > last)
        equal = np.flatnonzero(weights_N == last)[: fewest + 1 - above.size]
        kept = np.sort(np.concatenate([above, equal]))
        return ids_N[kept], weights_N[kept]
    return None


def draw(
    scores_V: NDArray[np.float32], top: float, temperature: float, uniform: float
) -> int | None:
    """Return the token whose share of all weights holds `uniform`; `None` where it is close."""
    if scores_V.size < _SMALL:
        return None
    blocks = -(-scores_V.size // BLOCK)
    sums = np.empty(blocks)
    step = 64 * BLOCK  # what stays in a core's cache
    for start in range(0, scores_V.size, step):
        weights = exact_weights(scores_V[start : start + step], top, temperature)
        first = start // BLOCK
        whole = weights.size // BLOCK
        sums[first : first + whole] = weights[: whole * BLOCK].reshape(whole, BLOCK).sum(axis=1)
        if whole * BLOCK < weights.size:
            sums[first + whole] = weights[whole * BLOCK :].sum()
    ends = np.cumsum(sums)
    total, wanted = ends[-1], uniform * ends[-1]
    block = min(int(np.searchsorted(ends, wanted, side="right")), blocks - 1)
    begin = block * BLOCK
    weights = exact_weights(scores_V[begin : begin + BLOCK], top, temperature)
    inside = np.cumsum(weights) + (ends[block - 1] if block else 0.0)
    place = int(np.searchsorted(inside, wanted, side="right"))
    low = inside[place - 1] if place else (ends[block - 1] if block else 0.0)
    if place == inside.size or min(wanted - low, inside[place] - wanted) <= _FINE * total:
        return None
    return begin + place

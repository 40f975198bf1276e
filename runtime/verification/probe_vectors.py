"""Vectors that stand for images in the probes of a decoder that reads images."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER, _INCREMENT = 1664525, 1013904223
"""Constants of the generator `x -> a x + c (mod 2^32)` in Numerical Recipes, section 7.1."""

_LARGEST = 0.25


def probe_grids(ids: Sequence[int], token: int) -> list[tuple[int, int]]:
    """Rows and columns of the images that a text of a probe has: its runs of a placeholder.

    An image has as many rows as fit into a square, without an incomplete one.
    """
    grids = []
    for own, run in groupby(ids):
        if own == token:
            count = len(list(run))
            rows = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
            grids.append((rows, count // rows))
    return grids


def probe_vectors(count: int, size: int) -> NDArray[np.float32]:
    """Return vectors `(count, size)` of numbers from -0.25 to 0.25, the same on every machine."""
    places = np.arange(count * size, dtype=np.uint64)
    mixed = (places * _MULTIPLIER + _INCREMENT) % (1 << 32)
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * _MULTIPLIER + _INCREMENT) % (1 << 32)
    values = (mixed.astype(np.float64) / (1 << 31) - 1) * _LARGEST
    return values.astype(np.float32).reshape(count, size)

"""Tell whether a map of vectors selects channels, or rotates them by position, and by which tables.

Shape letters: B batch, S new tokens, P positions, R rotated channels of a head, D channels of a
head, W channels of an input vector, N of an output vector.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.export.passes.token_maps import Array, TokenMap

TOLERANCE = 1e-4
"""Largest error of a channel relative to the largest channel. Any other map is off by far more."""

_CHUNK = 1 << 20
"""Elements of the vectors that are computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """A rotation of pairs of channels by position, by tables `(P, R / 2)`.

    Neighbors are a pair if it is interleaved; else the halves of R are paired.
    """

    cos: Array
    sin: Array
    interleaved: bool

    @property
    def rotated(self) -> int:
        """R."""
        return 2 * len(self.cos[0])

    def __call__(self, x: Array, positions: NDArray[np.int64], head_dim: int) -> Array:
        """Rotate vectors `(B, S, N)` of heads by their positions `(B, S)`."""
        heads = x.reshape(*x.shape[:2], -1, head_dim)
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        first, second = _pairs(self.rotated, interleaved=self.interleaved)
        out = heads.copy()
        out[..., first] = heads[..., first] * cos - heads[..., second] * sin
        out[..., second] = heads[..., second] * cos + heads[..., first] * sin
        return out.reshape(x.shape)


class Reading(NamedTuple):
    """What a map computes: `scale * rotation(x[..., first : first + N])`.

    The rotation is None if positions do not matter.
    """

    first: int
    scale: float
    rotation: Rotation | None


def read_map(
    vectors: TokenMap,
    *,
    width: int,
    head_dim: int,
    positions: int,
    candidates: Iterable[Rotation],
    may_scale: bool,
) -> Reading | None:
    """Read what a map computes, and check that it computes nothing else.

    1. At the first position, where every angle is 0: which channels does it select?
    2. At the second position: which channels of the first head are mixed in pairs?
    3. Try the candidates, or else read the tables off at every position.
    4. Compare with the map on random vectors: all heads, near and far positions, padding.
    """
    first = _first_channel(vectors, width)
    if first is None:
        return None
    matrix = _head(vectors, first, head_dim)
    pattern = _pattern(matrix)
    if pattern is None:
        plain = Reading(first, _factor(matrix[0, 0]), None)
        is_allowed = may_scale or plain.scale == 1
        is_right = is_allowed and _is_right(vectors, plain, width, head_dim, positions)
        return plain if is_right else None
    rotated, interleaved = pattern
    if rotated > head_dim:
        return None
    for rotation in candidates:
        if (rotation.rotated, rotation.interleaved) == pattern and len(rotation.cos) == positions:
            reading = Reading(first, _factor(matrix[0, 0] / rotation.cos[1, 0]), rotation)
            is_allowed = may_scale or reading.scale == 1
            if is_allowed and _is_right(vectors, reading, width, head_dim, positions):
                return reading
    cos, sin = _tables(vectors, first, rotated, positions, interleaved=interleaved)
    new = Reading(first, 1.0, Rotation(cos=cos, sin=sin, interleaved=interleaved))
    return new if _is_right(vectors, new, width, head_dim, positions) else None


def _factor(value: float) -> float:
    """A factor, exactly 1 if only rounding makes it differ."""
    return 1.0 if abs(value - 1) < TOLERANCE / 10 else float(value)


def _first_channel(vectors: TokenMap, width: int) -> int | None:
    """The input channel that becomes the first; None unless the others follow in order.

    One vector of ones shows the factors, one of 1, 2, 3, ... then shows which channel went where.
    """
    numbers = np.arange(1, vectors.width + 1, dtype=np.float32)
    x = np.stack([np.ones_like(numbers), numbers])[:, None]
    scales, values = vectors(x, [1, 1])[:, 0]
    if len(scales) != width or not scales.all():
        return None
    places = np.rint(values / scales).astype(int) - 1
    first = int(places[0])
    return first if np.array_equal(places, first + np.arange(width)) else None


def _head(vectors: TokenMap, first: int, head_dim: int) -> Array:
    """The images of the first head's unit vectors at the second position, `(D, D)`."""
    x = np.zeros((head_dim, 1, vectors.width), np.float32)
    x[np.arange(head_dim), 0, first + np.arange(head_dim)] = 1
    return vectors(x, [2] * head_dim)[:, 0, :head_dim]


def _pattern(matrix: Array) -> tuple[int, bool] | None:
    """R, and whether pairs are neighbors; None if no channel enters another."""
    source, target = np.nonzero(np.triu(matrix, 1))
    if not len(source):
        return None
    distances = set((target - source).tolist())
    if distances == {1}:
        return int(target.max()) + 1, True
    return 2 * max(distances), False


def _pairs(rotated: int, *, interleaved: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the second channel of each pair."""
    half = np.arange(rotated // 2)
    return (2 * half, 2 * half + 1) if interleaved else (half, half + rotated // 2)


def _tables(
    vectors: TokenMap, first: int, rotated: int, positions: int, *, interleaved: bool
) -> tuple[Array, Array]:
    """Cosines and sines, `(P, R / 2)`: what a pair (1, 0) becomes at each position."""
    firsts, seconds = _pairs(rotated, interleaved=interleaved)
    step = max(1, _CHUNK // vectors.width)
    cos, sin = [], []
    for start in range(0, positions, step):
        rows = np.arange(start, min(start + step, positions))
        x = np.zeros((len(rows), 1, vectors.width), np.float32)
        x[..., first + firsts] = 1
        out = vectors(x, (rows + 1).tolist())[:, 0]
        cos.append(out[:, firsts])
        sin.append(out[:, seconds])
    return np.concatenate(cos), np.concatenate(sin)


def _is_right(
    vectors: TokenMap, reading: Reading, width: int, head_dim: int, positions: int
) -> bool:
    """Whether a map computes what was read."""
    random = np.random.default_rng(0)
    for new_tokens in [1] if vectors.is_single else [1, min(5, positions)]:
        # A full row, one with only the new tokens, and one padded after its first token.
        lengths = [positions, new_tokens, 1]
        x = random.normal(size=(len(lengths), new_tokens, vectors.width)).astype(np.float32)
        out = vectors(x, lengths)
        expected = x[..., reading.first : reading.first + width]
        places = np.maximum(np.array(lengths)[:, None] - new_tokens, 0) + np.arange(new_tokens)
        if reading.rotation is not None:
            expected = reading.rotation(expected, places, head_dim)
        expected = reading.scale * expected
        valid = np.arange(new_tokens) < np.array(lengths)[:, None]
        if out.shape != expected.shape or not _is_close(out[valid], expected[valid]):
            return False
    return True


def _is_close(got: Array, expected: Array) -> bool:
    return bool(np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max())

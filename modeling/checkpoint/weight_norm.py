"""Weights that a checkpoint stores as a length and a direction (Salimans and Kingma 2016)."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import TensorSource

PARTS = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
"""Names of the length and the direction: those of old and of new versions of PyTorch."""


class WeightNormed:
    """Tensors of a checkpoint, where every length and direction is one weight.

    The weight is `g * v / |v|`. The norm runs over the axes of which `g` has a single row, so that
    a length `(1, 1, K)` belongs to each tap of a convolution.
    """

    def __init__(self, stored: TensorSource) -> None:
        self._stored = stored
        shapes = stored.shapes()
        self._parts = dict(_pairs(shapes))
        for length, direction in self._parts.values():
            _check(length, shapes[length], direction, shapes[direction])
        parts = {part for pair in self._parts.values() for part in pair}
        self._shapes = {name: shape for name, shape in shapes.items() if name not in parts}
        self._shapes |= {name: shapes[pair[1]] for name, pair in self._parts.items()}
        self._whole = cache(self._product)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`; products are float32."""
        if name not in self._parts:
            return self._stored.read(name, start, stop, axis=axis)
        return self._whole(name).narrow(axis, start, stop - start)

    def _product(self, name: str) -> Tensor:
        shapes = self._stored.shapes()
        g, v = (self._stored.read(part, 0, shapes[part][0]).double() for part in self._parts[name])
        axes = [axis for axis, rows in enumerate(g.shape) if rows == 1]
        lengths = torch.linalg.vector_norm(v, dim=axes, keepdim=True)
        whole: Tensor = (v * (g / lengths)).float()
        return whole


def _pairs(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of weights, and of their length and direction where both are stored."""
    for length, direction in PARTS:
        for name in shapes:
            prefix = name.removesuffix(length)
            if name.endswith(f".{length}") and f"{prefix}{direction}" in shapes:
                yield f"{prefix}weight", (name, f"{prefix}{direction}")


def _check(length: str, g: tuple[int, ...], direction: str, v: tuple[int, ...]) -> None:
    fits = len(g) == len(v) > 0 and all(rows in (1, size) for rows, size in zip(g, v, strict=True))
    if not fits:
        raise WeightError(
            f"{length}: a length of weight normalization must have the axes of {direction}, {v}, "
            f"or a single row of them (got {g}). Copy the checkpoint again."
        )

"""Weights that a checkpoint stores as a length and a direction (Salimans and Kingma 2016)."""

from collections.abc import Collection, Iterator, Mapping

import torch

from ortolan.modeling.errors import WeightError
from ortolan.modeling.lazy_tensor import LazyTensor

PARTS = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
"""Names of the length and the direction: those of old and of new versions of PyTorch."""


def weight_normed(stored: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Tensors of a checkpoint, where every length and direction is one weight, float32.

    The weight is `g * v / |v|`. The norm runs over the axes of which `g` has a single row, so that
    a length `(1, 1, K)` belongs to each tap of a convolution.
    """
    tensors = dict(stored)
    for name, (length, direction) in _pairs(stored):
        g, v = tensors.pop(length), tensors.pop(direction)
        _check(length, tuple(g.shape), direction, tuple(v.shape))
        axes = [axis for axis, rows in enumerate(g.shape) if rows == 1]
        lengths = torch.linalg.vector_norm(v.double(), dim=axes, keepdim=True)
        tensors[name] = (v.double() * (g.double() / lengths)).float()
    return tensors


def _pairs(names: Collection[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of weights, and of their length and direction where both are stored."""
    for length, direction in PARTS:
        for name in names:
            prefix = name.removesuffix(length)
            if name.endswith(f".{length}") and f"{prefix}{direction}" in names:
                yield f"{prefix}weight", (name, f"{prefix}{direction}")


def _check(length: str, g: tuple[int, ...], direction: str, v: tuple[int, ...]) -> None:
    fits = len(g) == len(v) > 0 and all(rows in (1, size) for rows, size in zip(g, v, strict=True))
    if not fits:
        raise WeightError(
            f"{length}: a length of weight normalization must have the axes of {direction}, {v}, "
            f"or a single row of them (got {g}). Copy the checkpoint again."
        )

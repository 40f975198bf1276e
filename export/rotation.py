"""A rotation that spreads outliers of the residual stream over all of its channels.

    Q = D (A ⊗ B),   D: signs,   A (M, M) and B (N, N): Hartley matrices,   M N = K

Hartley matrices are orthogonal and symmetric, have entries of similar size, and exist for every
size. As in a randomized Hadamard transform, random signs keep channels that move together from
adding up in one. The two factors make a product with Q cheap: K (M + N) multiplications for a row
instead of K².

Shape letters: R rows, K width.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.export.products import linear

_SEED = 0


class Rotation(NamedTuple):
    """The factors of Q, float32.

    Attributes:
        signs: diagonal of D, `(K,)`.
        left: A.
        right: B.
    """

    signs: Tensor
    left: Tensor
    right: Tensor


@cache
def rotation(width: int) -> Rotation:
    """The rotation of rows of a width."""
    left = max(size for size in range(1, math.isqrt(width) + 1) if width % size == 0)
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (width,), generator=generator).float() * 2 - 1
    return Rotation(signs, _hartley(left), _hartley(width // left))


def rotated(x_RK: Tensor) -> Tensor:
    """Rows times Q, float32 `(R, K)`."""
    signs, left, right = rotation(x_RK.shape[-1])
    x_RMN = (x_RK * signs).reshape(-1, len(left), len(right))
    return linear(linear(x_RMN, right).mT, left).mT.reshape(x_RK.shape)


def _hartley(size: int) -> Tensor:
    """An orthogonal, symmetric matrix."""
    numbers = torch.arange(size, dtype=torch.float64)
    # the remainder keeps angles small and so exact
    angles = torch.outer(numbers, numbers).remainder(size) * (2 * math.pi / size)
    return ((angles.cos() + angles.sin()) / math.sqrt(size)).float()

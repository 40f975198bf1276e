"""GPTQ: codes that fit the outputs of a weight, from statistics of its inputs.

The statistics are the Hessian of the squared error of the outputs: the sum of `x x^T` over
calibration tokens.

Shape letters: N outputs, K inputs, G groups of inputs, C columns of a part.

Columns are rounded one after another, and each compensates for the errors before it:

    H       = L L^T,  with columns sorted by importance
    for k   = K-1 (the most important column) ... 0:
    Q_k     = round(W_k + sum over j > k of E_j L_jk / L_kk)
    E_k     = W_k - Q_k

Notes:
    * The paper reads the coefficients from a Cholesky factor of the inverse of H. With the columns
      in reverse, a factor of H itself has them: `||E L||` is the error of the outputs, and column
      `k` of `E L` is `L_kk (E_k + sum over j > k of E_j L_jk / L_kk)`. That takes a quarter of the
      work, and inverts nothing.
    * Scales are chosen first, from the original weight, so columns can be rounded in any order.

Source: Frantar et al., "GPTQ", 2022, https://arxiv.org/abs/2210.17323
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.products import linear
from ortolan.export.quantize.blocks import Codes, check_finite, codes_of, into_groups, limits
from ortolan.export.quantize.rtn import search
from ortolan.export.scheme import Scheme

DAMPING = 0.01
"""Fraction of the mean of the Hessian's diagonal that is added to the diagonal."""

COLUMNS = 256
"""Columns per block; the errors of earlier blocks are applied with one product per block."""

FEW_COLUMNS = 32
"""Columns per part of a block; errors of earlier parts are applied with one product per part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A factorized Hessian, for every weight that reads the same inputs.

    Attributes:
        hessian: float32 `(K, K)`, damped.
        feedback: float32 `(K, K)`, lower triangular with ones on the diagonal; `[j, k]` is the
            share of the error of column `order[j]` that column `order[k]` compensates.
        order: int64 `(K,)`, columns from the least to the most important; rounding starts at the
            end.
    """

    hessian: Tensor
    feedback: Tensor
    order: Tensor


def factorize(hessian: Tensor, *, damping: float = DAMPING) -> Factor:
    """Factorize a Hessian of any scale, which is damped in place and part of the result.

    One more matrix of its size is in memory. A column whose input was always 0 is rounded to
    nearest.

    Source: Chee et al., "QuIP", 2023, https://arxiv.org/abs/2307.13304: a factor of the Hessian
    leads to the same codes as the factor of its inverse in GPTQ.
    """
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean())
    diagonal += damping * mean if mean else 1.0
    order = diagonal.argsort(stable=True)
    # LAPACK is column-major: with such a matrix, it works in place.
    factor = _permuted(hessian, order).mT
    failed = torch.empty(0, dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    scale = factor.diagonal().clone()
    if int(failed) or not bool(scale.isfinite().all()):
        raise ExportError(
            f"The Hessian has no Cholesky factor with {damping=}. Calibrate with more text, or "
            "raise the damping."
        )
    return Factor(hessian=hessian, feedback=factor.div_(scale), order=order)


def _permuted(matrix: Tensor, order: Tensor) -> Tensor:
    """A copy with permuted rows and columns, a few rows at a time."""
    permuted = torch.empty_like(matrix)
    for start in range(0, len(order), COLUMNS):
        rows = matrix.index_select(0, order[start : start + COLUMNS])
        torch.index_select(rows, 1, order, out=permuted[start : start + COLUMNS])
    return permuted


def round_columns(weight: Tensor, factor: Factor, scheme: Scheme) -> Codes:
    """Choose codes for one of the weights `(N, K)` that read the same inputs."""
    check_finite(weight)
    blocks = into_groups(weight, scheme.group)
    importance = factor.hessian.diagonal()[None]
    scales, zeros = search(blocks, into_groups(importance, scheme.group), scheme)
    groups = factor.order // scheme.group
    scales_GN, zeros_GN = scales.T.contiguous(), zeros.T.contiguous()
    # Columns that are rounded hold their errors here.
    columns_KN = weight.T.index_select(0, factor.order)
    values_KN = torch.empty(columns_KN.shape, dtype=torch.uint8)
    for stop in range(len(columns_KN), 0, -COLUMNS):
        part = slice(max(stop - COLUMNS, 0), stop)
        wanted = linear(factor.feedback[stop:, part].T, columns_KN[stop:].T)
        values_KN[part] = _round_part(
            columns_KN[part],
            wanted.add_(columns_KN[part]),
            factor.feedback[part, part].contiguous(),
            scales_GN[groups[part]],
            zeros_GN[groups[part]],
            scheme,
        )
    values = torch.empty_like(values_KN).index_copy_(0, factor.order, values_KN)
    return codes_of(values.T.contiguous(), scales, zeros, scheme)


def output_loss(error: Tensor, factor: Factor) -> float:
    """Squared error of the outputs, for errors `(N, K)` of a weight."""
    return float((linear(error, factor.hessian) * error).sum())


def _round_part(
    columns: Tensor,
    wanted: Tensor,
    feedback: Tensor,
    scales: Tensor,
    zeros: Tensor,
    scheme: Scheme,
) -> Tensor:
    """Round a block of columns `(C, N)`, the last one first; overwrite them with their errors.

    `wanted` are the columns compensated for earlier blocks, and become the codes that are returned.
    """
    divisors = scales.masked_fill(scales == 0, math.inf)
    lowest, highest = limits(zeros, scheme)
    steps, shares = wanted, feedback.T.contiguous()
    for stop in range(len(columns), 0, -FEW_COLUMNS):
        start = max(stop - FEW_COLUMNS, 0)
        steps[start:stop].addmm_(shares[start:stop, stop:], columns[stop:])
        for k in reversed(range(start, stop)):
            step, rest = steps[k], slice(k + 1, stop)
            torch.addmv(step, columns[rest].T, shares[k, rest], out=step)
            step.div_(divisors[k]).round_().clamp_(lowest[k], highest[k])
            columns[k].addcmul_(step, scales[k], value=-1)
    return steps.add_(zeros)

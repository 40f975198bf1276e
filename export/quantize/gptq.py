"""GPTQ: codes that fit what a weight computes, from statistics of its inputs.

The statistics are the Hessian of the squared error of the outputs: the sum of `x x^T` over
calibration tokens.

Shape letters: N outputs, K inputs, G groups of inputs, C columns of a part.

Notes:
    * Columns are rounded one after another. Each takes over what the errors of those before it
      make of the outputs, as far as it can: it is rounded to what makes up for them best.
    * The paper reads the coefficients from the Cholesky factor of the inverse of the Hessian.
      With the columns in reverse, the factor of the Hessian itself has them: `H = L L^T` makes
      `||E L||` the error of the outputs, for errors `E` of the weight, and the column `k` of
      `E L` is `L_kk (E_k + sum over j > k of E_j L_jk / L_kk)`. So one factor is enough, at a
      quarter of the work, and nothing is inverted.
    * Scales are chosen beforehand from the weight as it is. Columns can then be rounded in any
      order, the most important ones first, and no table from columns to groups is needed.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.products import linear
from ortolan.export.quantize.blocks import Codes, check_finite, into_groups, limits
from ortolan.export.quantize.rtn import search
from ortolan.export.scheme import Scheme

DAMPING = 0.01
"""Part of the mean of a Hessian's diagonal that is added to it."""

COLUMNS = 256
"""Columns between two products with the errors of all columns before them."""

FEW_COLUMNS = 32
"""Columns of these between two products with the errors of the others of these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A Hessian, ready for use; serves every weight that reads the same inputs.

    Attributes:
        hessian: float32 `(K, K)`, damped.
        feedback: float32 `(K, K)`, lower triangular with ones on the diagonal: how much of the
            error of column `order[j]` the column `order[k]` takes over, at `[j, k]`.
        order: int64 `(K,)`, columns in the order of their importance; rounding starts at the end.
    """

    hessian: Tensor
    feedback: Tensor
    order: Tensor


def quantize(weight: Tensor, hessian: Tensor, scheme: Scheme, *, damping: float = DAMPING) -> Codes:
    """Choose codes of least error in the outputs.

    Args:
        weight: float32 `(N, K)`.
        hessian: as for `factorize`, which damps it.
        scheme: the format.
        damping: as for `factorize`.

    Raises:
        ExportError: the weight or the Hessian has numbers that are not finite, or the Hessian is
            not positive definite.

    Source: Frantar et al., "GPTQ", 2022, https://arxiv.org/abs/2210.17323
    """
    return round_columns(weight, factorize(hessian, damping=damping), scheme)


def factorize(hessian: Tensor, *, damping: float = DAMPING) -> Factor:
    """Prepare a Hessian. Two matrices of its size are alive at a time, one of them its own.

    An input that was 0 in all of the calibration has no influence; its column is rounded to
    nearest.

    Args:
        hessian: float32 `(K, K)`, of any scale; damped in place and kept by the factor.
        damping: part of the mean of the diagonal that is added to the diagonal.

    Raises:
        ExportError: the Hessian has numbers that are not finite, or is not positive definite.

    Source: Chee et al., "QuIP", 2023, https://arxiv.org/abs/2307.13304: the factor of the Hessian
    gives the codes that GPTQ finds with that of the inverse.
    """
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean())
    diagonal += damping * mean if mean else 1.0
    order = diagonal.argsort(stable=True)
    # LAPACK stores columns one after the other; given such a matrix, it works in place.
    factor = _permuted(hessian, order).mT
    failed = torch.empty(0, dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    scale = factor.diagonal().clone()
    if int(failed) or not bool(scale.isfinite().all()):
        raise ExportError(
            f"hessian: expected a positive definite matrix of finite numbers with {damping=}, got "
            "one that has no Cholesky factor. Calibrate with more text, or raise the damping."
        )
    return Factor(hessian=hessian, feedback=factor.div_(scale), order=order)


def _permuted(matrix: Tensor, order: Tensor) -> Tensor:
    """A copy with rows and columns in another order, some rows at a time."""
    permuted = torch.empty_like(matrix)
    for start in range(0, len(order), COLUMNS):
        rows = matrix.index_select(0, order[start : start + COLUMNS])
        torch.index_select(rows, 1, order, out=permuted[start : start + COLUMNS])
    return permuted


def round_columns(weight: Tensor, factor: Factor, scheme: Scheme) -> Codes:
    """Choose codes of least error in the outputs, for one of several weights of the same inputs.

    Args:
        weight: float32 `(N, K)`. Rows do not depend on each other.
        factor: of the inputs.
        scheme: the format.

    Raises:
        ExportError: a number of the weight is infinite or not a number.
    """
    check_finite(weight)
    blocks = into_groups(weight, scheme.group)
    importance = factor.hessian.diagonal()[None]
    scales, zeros = search(blocks, into_groups(importance, scheme.group), scheme)
    groups = factor.order // scheme.group
    scales_GN, zeros_GN = scales.T.contiguous(), zeros.T.contiguous()
    # Columns that are done hold their errors here.
    columns_KN = weight.T.index_select(0, factor.order)
    values_KN = torch.empty(columns_KN.shape, dtype=torch.uint8)
    for stop in range(len(columns_KN), 0, -COLUMNS):
        part = slice(max(stop - COLUMNS, 0), stop)
        taken_over = linear(factor.feedback[stop:, part].T, columns_KN[stop:].T)
        values_KN[part] = _round_part(
            columns_KN[part],
            taken_over.add_(columns_KN[part]),
            factor.feedback[part, part].contiguous(),
            scales_GN[groups[part]],
            zeros_GN[groups[part]],
            scheme,
        )
    values = torch.empty_like(values_KN).index_copy_(0, factor.order, values_KN)
    return Codes(
        values=values.T.contiguous(),
        scales=scales,
        zeros=None if scheme.symmetric else zeros.to(torch.uint8),
        scheme=scheme,
    )


def output_loss(error: Tensor, factor: Factor) -> float:
    """The squared error of the outputs, for errors `(N, K)` of a weight."""
    return float((linear(error, factor.hessian) * error).sum())


def _round_part(
    columns: Tensor,
    wanted: Tensor,
    feedback: Tensor,
    scales: Tensor,
    zeros: Tensor,
    scheme: Scheme,
) -> Tensor:
    """Round some columns, the last one first, and replace them by their errors.

    Args:
        columns: float32 `(C, N)`, the weight; overwritten by its errors.
        wanted: the same with what it takes over from columns before these; overwritten.
        feedback: float32 `(C, C)`, among these columns.
        scales: float32 `(C, N)`.
        zeros: float32 `(C, N)`.
        scheme: the format.

    Returns:
        The codes, float32 `(C, N)`.
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

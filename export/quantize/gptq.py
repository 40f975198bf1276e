"""GPTQ: codes that fit what a weight computes, from statistics of its inputs.

The statistics are the Hessian of the squared error of the outputs: the sum of `x x^T` over
calibration tokens.

Shape letters: N outputs, K inputs, G groups of inputs.

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

from dataclasses import dataclass

import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.quantize.blocks import Codes, Scheme, check_finite, into_groups, nearest
from ortolan.export.quantize.rtn import search

DAMPING = 0.01
"""Part of the mean of a Hessian's diagonal that is added to it."""

COLUMNS = 128
"""Columns between two products with the errors of all columns before them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """A Hessian, ready for use; serves every weight that reads the same inputs.

    Attributes:
        feedback: float32 `(K, K)`, lower triangular with ones on the diagonal: how much of the
            error of column `order[j]` the column `order[k]` takes over, at `[j, k]`.
        scale: float32 `(K,)`: `feedback * scale` is the Cholesky factor of the damped Hessian, with
            rows and columns in that order.
        order: int64 `(K,)`, columns in the order of their importance; rounding starts at the end.
        importance: float32 `(K,)`, the damped diagonal of the Hessian.
    """

    feedback: Tensor
    scale: Tensor
    order: Tensor
    importance: Tensor


def quantize(weight: Tensor, hessian: Tensor, scheme: Scheme, *, damping: float = DAMPING) -> Codes:
    """Choose codes of least error in the outputs.

    Args:
        weight: float32 `(N, K)`.
        hessian: as for `factorize`, which overwrites it.
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
        hessian: float32 `(K, K)`, contiguous, of any scale. Its memory becomes the factor's.
        damping: part of the mean of the diagonal that is added to the diagonal.

    Raises:
        ExportError: the Hessian has numbers that are not finite, or is not positive definite.

    Source: Chee et al., "QuIP", 2023, https://arxiv.org/abs/2307.13304: the factor of the Hessian
    gives the codes that GPTQ finds with that of the inverse.
    """
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean())
    diagonal += damping * mean if mean else 1.0
    importance = diagonal.clone()
    order = importance.argsort(stable=True)
    permuted = hessian.index_select(0, order)
    torch.index_select(permuted, 1, order, out=hessian)
    del permuted
    factor, failed = torch.linalg.cholesky_ex(hessian)
    scale = factor.diagonal().clone()
    if int(failed) or not bool(scale.isfinite().all()):
        raise ExportError(
            f"hessian: expected a positive definite matrix of finite numbers with {damping=}, got "
            "one that has no Cholesky factor. Calibrate with more text, or raise the damping."
        )
    torch.div(factor, scale, out=hessian)
    return Factor(feedback=hessian, scale=scale, order=order, importance=importance)


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
    scales, zeros = search(blocks, into_groups(factor.importance[None], scheme.group), scheme)
    groups = factor.order // scheme.group
    scales_GN, zeros_GN = scales.T.contiguous(), zeros.T.contiguous()
    # Columns that are done hold their errors here.
    columns_KN = weight.T.index_select(0, factor.order)
    values_KN = torch.empty(columns_KN.shape, dtype=torch.uint8)
    for stop in range(len(columns_KN), 0, -COLUMNS):
        part = slice(max(stop - COLUMNS, 0), stop)
        taken_over = factor.feedback[stop:, part].T @ columns_KN[stop:]
        values_KN[part] = _round_part(
            columns_KN[part],
            columns_KN[part] + taken_over,
            factor.feedback[part, part],
            scales_GN[groups[part]],
            zeros_GN[groups[part]],
            scheme,
        )
    values = torch.empty(weight.shape, dtype=torch.uint8)
    values[:, factor.order] = values_KN.T
    return Codes(
        values=values,
        scales=scales,
        zeros=None if scheme.symmetric else zeros.to(torch.uint8),
        scheme=scheme,
    )


def output_loss(error: Tensor, factor: Factor) -> float:
    """The squared error of the outputs, for errors `(N, K)` of a weight."""
    columns_NK = error.index_select(1, factor.order)
    return float((columns_NK @ factor.feedback).mul_(factor.scale).square_().sum())


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
        wanted: the same with what it takes over from columns before these.
        feedback: float32 `(C, C)`, among these columns.
        scales: float32 `(C, N)`.
        zeros: float32 `(C, N)`.
        scheme: the format.

    Returns:
        The codes, float32 `(C, N)`.
    """
    codes = torch.empty_like(columns)
    shares = feedback.T.contiguous()
    for k in reversed(range(len(columns))):
        done = columns[k + 1 :]
        target = torch.addmv(wanted[k], done.T, shares[k, k + 1 :])
        codes[k] = nearest(target, scales[k], zeros[k], scheme)
        columns[k] -= (codes[k] - zeros[k]) * scales[k]
    return codes

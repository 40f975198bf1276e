"""Codes and scales that are improved in turn, until the outputs change least.

GPTQ rounds every column once, with scales that were chosen before. Here each group gets the scale
that suits its codes best, then each of its columns the code that suits all others best, and so
on, several times over. No step can raise the error of the outputs.

Shape letters: N outputs, K inputs, C columns of a group.

Notes:
    * For errors `E` of the weight, `E H` has all that a step needs: the best scale moves by
      `(E H) q / (q H q)` for codes `q`, the best error of a column by `-(E H)_k / H_kk`.
    * The Hessian itself is gone: `R = E L` is kept in its place, and the rows of `L` that belong
      to a group give its part of `E H` and of `H`. That takes no second `K x K` matrix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, dequantize, nearest
from ortolan.export.quantize.gptq import Factor

SWEEPS = 3
"""How often every group is improved (docs/adr/0005)."""

NUMBERS = 1 << 22
"""Of a float tensor as large as the weights that are worked on together, 16 MiB."""


def refine(weight: Tensor, codes: Codes, factor: Factor, *, sweeps: int = SWEEPS) -> Codes:
    """Lower the error of the outputs by better scales and codes. Zero points stay.

    Args:
        weight: float32 `(N, K)`, what the codes stand for.
        codes: where to start; unchanged.
        factor: of the inputs.
        sweeps: how often every group is improved.

    Source: Behdin et al., "QuantEase", 2023, https://arxiv.org/abs/2309.01885, for the codes.
    """
    values, scales = codes.values.clone(), codes.scales.clone()
    groups = list(_groups(factor, codes.scheme.group))
    step = max(1, NUMBERS // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        zeros = None if codes.zeros is None else codes.zeros[rows]
        part = Codes(values=values[rows], scales=scales[rows], zeros=zeros, scheme=codes.scheme)
        _refine_rows(weight[rows], part, factor, groups, sweeps)
    return replace(codes, values=values, scales=scales)


class Group(NamedTuple):
    """Columns that share a scale.

    Attributes:
        columns: of the weight.
        places: of these columns in the order of the factor, `(C,)`.
        hessian: among them, `(C, C)`.
    """

    columns: slice
    places: Tensor
    hessian: Tensor


def _groups(factor: Factor, size: int) -> Iterator[Group]:
    place = factor.order.argsort()
    for start in range(0, len(place), size):
        columns = slice(start, min(start + size, len(place)))
        rows_CK = factor.feedback[place[columns]].mul_(factor.scale)
        yield Group(columns, place[columns], rows_CK @ rows_CK.T)


def _refine_rows(
    weight: Tensor, codes: Codes, factor: Factor, groups: Sequence[Group], sweeps: int
) -> None:
    """Replace the codes and scales of some rows, in place."""
    errors_NK = (weight - dequantize(codes)).index_select(1, factor.order)
    # E L; from here on it follows every change of E
    rest_NK = (errors_NK @ factor.feedback).mul_(factor.scale)
    for _ in range(sweeps):
        for number, group in enumerate(groups):
            rows_CK = factor.feedback[group.places].mul_(factor.scale)
            change_CN = _refine_group(weight, codes, number, group, rows_CK @ rest_NK.T)
            rest_NK.addmm_(change_CN.T, rows_CK)


def _refine_group(
    weight: Tensor, codes: Codes, number: int, group: Group, slopes_CN: Tensor
) -> Tensor:
    """Replace the scale and the codes of one group.

    Args:
        weight: float32 `(N, K)`.
        codes: of the weight; those of the group are overwritten.
        number: of the group.
        group: its columns.
        slopes_CN: all errors of the weight times the Hessian; overwritten.

    Returns:
        By how much the errors of these columns changed, `(C, N)`.
    """
    hessian_CC, scales = group.hessian, codes.scales[:, number]
    zeros = torch.tensor(float(codes.scheme.middle))
    if codes.zeros is not None:
        zeros = codes.zeros[:, number].float()
    steps_CN = codes.values[:, group.columns].T.float().sub_(zeros)
    weight_CN = weight[:, group.columns].T.contiguous()
    before_CN = weight_CN - steps_CN * scales

    curved_CN = hessian_CC @ steps_CN
    curvature = (curved_CN * steps_CN).sum(0)
    moves = (slopes_CN * steps_CN).sum(0) / curvature
    moves = torch.where(curvature > 0, moves, 0.0)  # else every number of the group is 0
    scales += moves
    slopes_CN.addcmul_(curved_CN, moves, value=-1)

    after_CN = weight_CN - steps_CN * scales
    change_CN = torch.empty_like(after_CN)
    for k, curve in enumerate(hessian_CC.diagonal().tolist()):
        slope = torch.addmv(slopes_CN[k], change_CN[:k].T, hessian_CC[k, :k])
        wanted = weight_CN[k] - after_CN[k] + slope / curve
        steps_CN[k] = nearest(wanted, scales, zeros, codes.scheme).sub_(zeros)
        error = weight_CN[k] - steps_CN[k] * scales
        change_CN[k] = error - after_CN[k]
        after_CN[k] = error
    codes.values[:, group.columns] = steps_CN.add_(zeros).T.to(torch.uint8)
    return after_CN.sub_(before_CN)

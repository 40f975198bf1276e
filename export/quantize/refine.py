"""Improves codes and scales in turn, to reduce the error of the outputs.

GPTQ rounds every column once, with fixed scales. Here, each group gets the best scale for its
codes, then each of its columns the best code given all others. No step can increase the error.

Shape letters: n rows of a weight, K its columns, C columns of a group.

Notes:
    * For errors `E` of the weight, the best scale moves by `(E H) q / (q H q)` for codes `q`, and
      the best error of a column by `-(E H)_k / H_kk`.
    * The columns of `E H` of a group are computed when its turn comes, which is half the work of
      keeping all columns up to date.
    * Within a group, all numbers are in steps of its scale, so that a column needs one product, one
      rounding and one subtraction.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ortolan.export.products import linear
from ortolan.export.quantize.blocks import Codes, limits
from ortolan.export.quantize.gptq import FEW_COLUMNS, Factor


def refine(weight_nK: Tensor, codes: Codes, factor: Factor) -> Codes:
    """Reduce the error of the outputs by better scales and codes; zero points stay.

    Source: Behdin et al., "QuantEase", 2023, https://arxiv.org/abs/2309.01885, for the codes.
    """
    scheme, inputs, hessian_KK = codes.scheme, weight_nK.shape[1], factor.hessian
    scales_Gn = codes.scales.T.clone(memory_format=torch.contiguous_format)
    zeros_Gn = torch.full_like(scales_Gn, scheme.middle)
    if codes.zeros is not None:
        zeros_Gn = codes.zeros.T.float()
    group = torch.arange(inputs) // scheme.group
    steps_Kn = codes.values.T.contiguous().float().sub_(zeros_Gn[group])
    errors_Kn = weight_nK.T.clone(memory_format=torch.contiguous_format)
    errors_Kn.addcmul_(steps_Kn, scales_Gn[group], value=-1)
    for number, start in enumerate(range(0, inputs, scheme.group)):
        columns = slice(start, start + scheme.group)
        slopes_Cn = linear(hessian_KK[columns], errors_Kn.T)
        _refine_group(
            steps_Kn[columns],
            errors_Kn[columns],
            scales_Gn[number],
            slopes_Cn,
            hessian_KK[columns, columns],
            limits(zeros_Gn[number], scheme),
        )
    values = torch.empty_like(codes.values).copy_(steps_Kn.add_(zeros_Gn[group]).T)
    return replace(codes, values=values, scales=scales_Gn.T.contiguous())


def _refine_group(
    steps_Cn: Tensor,
    errors_Cn: Tensor,
    scales_n: Tensor,
    slopes_Cn: Tensor,
    hessian_CC: Tensor,
    range_n: tuple[Tensor, Tensor],
) -> None:
    """Refine the scale and the codes minus zero points of one group, in place.

    `slopes_Cn` are these columns of the errors times the Hessian, and are overwritten.
    """
    curved_Cn = linear(hessian_CC, steps_Cn.T)
    curvature = (curved_Cn * steps_Cn).sum(0)
    moves = (slopes_Cn * steps_Cn).sum(0).div_(curvature)
    moves = torch.where(curvature > 0, moves, 0.0)  # otherwise all codes are zero points
    scales_n += moves
    errors_Cn.addcmul_(steps_Cn, moves, value=-1)
    slopes_Cn.addcmul_(curved_Cn, moves, value=-1)

    curves_C1 = hessian_CC.diagonal()[:, None]
    per_scale = torch.where(scales_n == 0, 0.0, 1 / scales_n)
    best_Cn = slopes_Cn.div_(curves_C1).mul_(per_scale).add_(steps_Cn)
    changes_Cn = _round_in_turn(best_Cn, steps_Cn, hessian_CC / curves_C1, range_n)
    errors_Cn.addcmul_(changes_Cn, scales_n, value=-1)
    steps_Cn.copy_(best_Cn)


def _round_in_turn(
    wanted_Cn: Tensor, steps_Cn: Tensor, shares_CC: Tensor, range_n: tuple[Tensor, Tensor]
) -> Tensor:
    """Round columns one after another, each compensating for the changes before it.

    Takes the best steps if no other column changed, which the chosen ones overwrite, and at
    `shares_CC[k, j]` the share of the change of column `j` that column `k` compensates. Returns the
    changes.
    """
    changes_Cn = torch.empty_like(steps_Cn)
    for start in range(0, len(steps_Cn), FEW_COLUMNS):
        stop = min(start + FEW_COLUMNS, len(steps_Cn))
        wanted_Cn[start:stop].addmm_(shares_CC[start:stop, :start], changes_Cn[:start], alpha=-1)
        for k in range(start, stop):
            step, done = wanted_Cn[k], slice(start, k)
            torch.addmv(step, changes_Cn[done].T, shares_CC[k, done], alpha=-1, out=step)
            step.round_().clamp_(*range_n)
            torch.sub(step, steps_Cn[k], out=changes_Cn[k])
    return changes_Cn

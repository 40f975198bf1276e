"""Codes and scales that are improved in turn, until the outputs change least.

GPTQ rounds every column once, with scales that were chosen before. Here each group gets the scale
that suits its codes best, then each of its columns the code that suits all others best, and so
on, several times over. No step can raise the error of the outputs.

Knows the factor of the Hessian (`gptq.Factor`). Does not know how the codes were found.

Shape letters: N outputs, K inputs, C columns of a group.

Notes:
    * For errors `E` of the weight, `E H` has all that a step needs: the best scale moves by
      `(E H) q / (q H q)` for codes `q`, the best error of a column by `-(E H)_k / H_kk`.
    * The Hessian itself is gone: `R = E L` is kept in its place, and the rows of `L` that belong
      to a group give its part of `E H` and of `H`. That takes no second `K x K` matrix.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, dequantize, nearest
from ortolan.export.quantize.gptq import Factor

SWEEPS = 3
"""How often every group is improved (docs/adr/0005)."""

NUMBERS = 1 << 24
"""Of a float tensor as large as the weights that are worked on together, 64 MiB."""


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
    step = max(1, NUMBERS // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        zeros = None if codes.zeros is None else codes.zeros[rows]
        part = Codes(values=values[rows], scales=scales[rows], zeros=zeros, scheme=codes.scheme)
        _refine_rows(weight[rows], part, factor, sweeps)
    return replace(codes, values=values, scales=scales)


def _refine_rows(weight: Tensor, codes: Codes, factor: Factor, sweeps: int) -> None:
    """Replace the codes and scales of some rows, in place."""
    size, inputs = codes.scheme.group, weight.shape[1]
    place = factor.order.argsort()
    errors_NK = (weight - dequantize(codes)).index_select(1, factor.order)
    # E L; from here on it follows every change of E
    rest_NK = (errors_NK @ factor.feedback).mul_(factor.scale)
    del errors_NK
    for _ in range(sweeps):
        for group, start in enumerate(range(0, inputs, size)):
            columns = slice(start, min(start + size, inputs))
            rows_CK = factor.feedback[place[columns]].mul_(factor.scale)
            slopes_CN = rows_CK @ rest_NK.T
            change_CN = _refine_group(weight, codes, group, columns, rows_CK @ rows_CK.T, slopes_CN)
            rest_NK.addmm_(change_CN.T, rows_CK)


def _refine_group(
    weight: Tensor, codes: Codes, group: int, columns: slice, hessian_CC: Tensor, slopes_CN: Tensor
) -> Tensor:
    """Replace the scale and the codes of one group.

    Args:
        weight: float32 `(N, K)`.
        codes: of the weight; those of the group are overwritten.
        group: its number.
        columns: of the group.
        hessian_CC: among them.
        slopes_CN: its product with all errors of the weight; overwritten.

    Returns:
        By how much the errors of these columns changed, `(C, N)`.
    """
    scales, zeros = codes.scales[:, group], torch.tensor(float(codes.scheme.middle))
    if codes.zeros is not None:
        zeros = codes.zeros[:, group].float()
    steps_CN = codes.values[:, columns].T.float().sub_(zeros)
    weight_CN = weight[:, columns].T.contiguous()
    before_CN = weight_CN - steps_CN * scales

    curved_CN = hessian_CC @ steps_CN
    curvature = (curved_CN * steps_CN).sum(0)
    moves = (slopes_CN * steps_CN).sum(0) / curvature
    moves = torch.where(curvature > 0, moves, 0.0)  # else every number of the group is 0
    scales += moves
    slopes_CN.addcmul_(curved_CN, moves, value=-1)

    after_CN = weight_CN - steps_CN * scales
    change_CN = torch.empty_like(after_CN)
    for k in range(len(after_CN)):
        slope = torch.addmv(slopes_CN[k], change_CN[:k].T, hessian_CC[k, :k])
        wanted = weight_CN[k] - after_CN[k] + slope / hessian_CC[k, k]
        code = nearest(wanted, scales, zeros, codes.scheme)
        codes.values[:, columns.start + k] = code.to(torch.uint8)
        error = weight_CN[k] - (code - zeros) * scales
        change_CN[k] = error - after_CN[k]
        after_CN[k] = error
    return after_CN.sub_(before_CN)

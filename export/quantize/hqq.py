"""Half-quadratic quantization: scales that fit most numbers of a group, rather than its outliers.

Needs no calibration.
"""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, check_finite, from_groups, into_groups, nearest
from ortolan.export.quantize.rtn import extremes, in_steps, refit, row_chunks
from ortolan.export.scheme import Scheme

ITERATIONS = 20

STIFFNESS = 6.0
"""Price of leaving an error; errors above about 0.3 of a step are left in part."""

STIFFENING = 1.01
"""Factor of the stiffness per iteration."""


def quantize(weight: Tensor, scheme: Scheme) -> Codes:
    """Alternate between choosing errors to leave, and fitting the scale to the rest.

    The loss is the sum of the square roots of the errors, which forgives a few large ones. Errors
    are shrunk to find the part that is left, and least squares fit the scale to the rest. Each
    group uses its iteration with the least squared error, so that none is worse than `rtn`.

    The paper moves zero points, which are real numbers there. Here they are codes, which a mean
    error below half a step would never move, so scales move instead.

    Args:
        weight: float32 `(N, K)`.
        scheme: the format.

    Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
    """
    check_finite(weight)
    blocks = into_groups(weight, scheme.group)
    scales, zeros = extremes(blocks, scheme)
    for rows in row_chunks(blocks):
        steps = in_steps(blocks[rows], scales[rows])
        scales[rows] *= _fit(steps, zeros[rows].unsqueeze(-1), scheme)
    return from_groups(blocks, scales, zeros, scheme, inputs=weight.shape[1])


def _fit(steps: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """Ratios to the first scale, `(N, G)`, for numbers in units of it."""
    equal = steps.new_ones(1, 1, 1)
    ratios = best = torch.ones_like(zeros)
    least = torch.full_like(zeros, torch.inf)
    stiffness = STIFFNESS
    for _ in range(ITERATIONS):
        distances = nearest(steps, ratios, zeros, scheme).sub_(zeros)
        errors = steps - distances * ratios
        cost = errors.square().sum(-1, keepdim=True)
        better = cost < least
        best, least = torch.where(better, ratios, best), torch.where(better, cost, least)
        ratios = refit(steps - _shrink(errors, stiffness), equal, distances, ratios)
        stiffness *= STIFFENING
    return best.squeeze(-1)


def _shrink(errors: Tensor, stiffness: float) -> Tensor:
    """The part of each error to leave, by the rule of the paper for p = 0.5."""
    size = errors.abs()
    return (size - size.rsqrt() / stiffness).clamp_(min=0).mul_(errors.sign())

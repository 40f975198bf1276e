"""Round to nearest, with scales from the extremes of each group, or from a search around them."""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, check_finite, codes_of, into_groups, nearest
from ortolan.export.scheme import Scheme

RATIOS = (1.0, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
"""Scales to try, relative to the one that reaches the extremes."""

REFITS = 2
"""Number of times that the search then fits the scale to its codes."""

CHUNK = 1 << 18
"""Numbers per temporary tensor of a search."""


def quantize(weight: Tensor, scheme: Scheme, *, importance: Tensor | None = None) -> Codes:
    """Round a weight `(N, K)`, with the scales of the extremes.

    Given the cost `(K,)` of a squared error per input, such as the mean square of the input, the
    scales of least cost are searched.
    """
    check_finite(weight)
    blocks = into_groups(weight, scheme.group)
    if importance is None:
        scales, zeros = extremes(blocks, scheme)
    else:
        scales, zeros = search(blocks, into_groups(importance[None], scheme.group), scheme)
    values = nearest(blocks, scales.unsqueeze(-1), zeros.unsqueeze(-1), scheme).flatten(1)
    # Through int16, which is three times as fast in PyTorch.
    values = values.to(torch.int16).to(torch.uint8)[:, : weight.shape[1]]
    return codes_of(values.contiguous(), scales, zeros, scheme)


def extremes(blocks: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scales and zero points `(N, G)` whose codes reach the ends of each group `(N, G, group)`.

    Symmetric: codes reach one step further down than up, so the number of largest magnitude gets
    the lowest code, with a negative scale if it is positive. Steps are finer by 1 / `middle` than
    in a balanced range, and an equally large number on the other side loses at most one step.

    Asymmetric: codes range from the lowest to the highest number, and always include 0.

    0.0 is exact in both.

    Source: the symmetric one is that of onnxruntime's default quantizer and llama.cpp's Q4_0.
    """
    low, high = blocks.amin(-1), blocks.amax(-1)
    if scheme.symmetric:
        largest = torch.where(-low >= high, low, high)
        return largest / -scheme.middle, torch.full_like(largest, scheme.middle)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = high / scheme.largest - low / scheme.largest  # high - low might overflow
    zeros = (-low / scales.masked_fill(scales == 0, 1)).round_().clamp_(0, scheme.largest)
    return scales, zeros


def search(blocks: Tensor, importance: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scales with the least error, and the zero points of `extremes`, `(N, G)`.

    Tries `RATIOS`, then alternates between the nearest codes and the best scale for them. Neither
    step can increase the error. `importance` `(1, G, group)` is the cost of a squared error.
    """
    scales, zeros = extremes(blocks, scheme)
    step = max(1, CHUNK // blocks[0].numel())
    for start in range(0, len(blocks), step):
        rows = slice(start, start + step)
        # Squares of steps neither overflow nor vanish, however large the weight is.
        steps = blocks[rows] / scales[rows].masked_fill(scales[rows] == 0, torch.inf).unsqueeze(-1)
        scales[rows] *= _best_ratio(steps, importance, zeros[rows].unsqueeze(-1), scheme)
    return scales, zeros


def _best_ratio(steps: Tensor, importance: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """The ratios `(N, G)` with the least error, for numbers in units of the first scale.

    The last ones are by least squares; a group in which all numbers are 0 keeps its ratio.
    """
    best = steps.new_ones(zeros.shape)
    least = steps.new_full(zeros.shape, torch.inf)
    for ratio in map(steps.new_tensor, RATIOS):
        distances = nearest(steps, ratio, zeros, scheme).sub_(zeros)
        cost = (steps - distances * ratio).square_().mul_(importance).sum(-1, keepdim=True)
        better = cost < least
        best, least = torch.where(better, ratio, best), torch.where(better, cost, least)
    for _ in range(REFITS):
        distances = nearest(steps, best, zeros, scheme).sub_(zeros)
        weighted = distances * importance
        squares = (weighted * distances).sum(-1, keepdim=True)
        fitted = (weighted * steps).sum(-1, keepdim=True) / squares
        best = torch.where(squares > 0, fitted, best)
    return best.squeeze(-1)

"""Round to nearest: every number of a group becomes the code next to it.

The extremes of a group give its scale, or a search around them does. The error of one number is not
moved to another, as in `gptq`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, check_finite, from_groups, into_groups, nearest
from ortolan.export.scheme import Scheme

RATIOS = (1.0, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
"""Scales that the search tries, in units of the scale that reaches the extremes."""

REFITS = 2
"""How often the search then moves the scale to the best one for its codes."""

CHUNK = 1 << 18
"""Numbers in each temporary tensor of a search."""


def quantize(weight: Tensor, scheme: Scheme, *, importance: Tensor | None = None) -> Codes:
    """Round a weight.

    Args:
        weight: float32 `(N, K)`.
        scheme: the format.
        importance: float32 `(K,)`, what the square of an error in each input costs, such as the
            mean square of that input: scales are searched for the least cost. None: they reach the
            extremes.

    Raises:
        ExportError: a number of the weight is infinite or not a number.
    """
    check_finite(weight)
    blocks = into_groups(weight, scheme.group)
    if importance is None:
        scales, zeros = extremes(blocks, scheme)
    else:
        scales, zeros = search(blocks, into_groups(importance[None], scheme.group), scheme)
    return from_groups(blocks, scales, zeros, scheme, inputs=weight.shape[1])


def extremes(blocks: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scales and zero points that let the codes reach the ends of each group.

    Symmetric: codes reach one step further down than up, so the number of largest magnitude
    becomes the lowest code, by a negative scale if it is positive. Steps are then finer by
    1 / `middle` than with as many steps up as down, and a number that is as large in the other
    direction loses at most one step.

    Asymmetric: codes reach from the lowest to the highest number, or to 0 if that lies beyond.

    0.0 is exact in both.

    Args:
        blocks: float32 `(N, G, group)`.
        scheme: the format.

    Returns:
        Scales and zero points, float32 `(N, G)`.

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
    """Scales of least error, and the zero points of `extremes`.

    Tries `RATIOS`, then alternates between the codes nearest to the numbers and the scale that is
    best for these codes; either step can only lower the error.

    Args:
        blocks: float32 `(N, G, group)`.
        importance: float32 `(1, G, group)`, what a squared error costs.
        scheme: the format.

    Returns:
        Scales and zero points, float32 `(N, G)`.
    """
    scales, zeros = extremes(blocks, scheme)
    for rows in row_chunks(blocks):
        steps = in_steps(blocks[rows], scales[rows])
        scales[rows] *= _best_ratio(steps, importance, zeros[rows].unsqueeze(-1), scheme)
    return scales, zeros


def row_chunks(blocks: Tensor) -> Iterator[slice]:
    """Rows of `(N, G, group)` to work on together, so that temporary tensors stay in caches."""
    step = max(1, CHUNK // blocks[0].numel())
    return (slice(start, start + step) for start in range(0, len(blocks), step))


def in_steps(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers `(N, G, group)` in units of their scales `(N, G)`; 0 where the scale is 0.

    Squares of steps neither overflow nor vanish, whatever the size of the weight.
    """
    return blocks / scales.masked_fill(scales == 0, torch.inf).unsqueeze(-1)


def refit(steps: Tensor, importance: Tensor, distances: Tensor, ratios: Tensor) -> Tensor:
    """The ratios by which codes fit best, in the sense of least squares.

    Args:
        steps: float32 `(N, G, group)`, the numbers.
        importance: float32 `(1, G, group)`, what a squared error costs.
        distances: float32 `(N, G, group)`, codes minus zero points.
        ratios: `(N, G, 1)`, kept where every code is the zero point.
    """
    weighted = distances * importance
    squares = (weighted * distances).sum(-1, keepdim=True)
    best = (weighted * steps).sum(-1, keepdim=True) / squares
    return torch.where(squares > 0, best, ratios)


def _best_ratio(steps: Tensor, importance: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """The ratios `(N, G)` of least error, for numbers in units of the first scale."""
    best = steps.new_ones(zeros.shape)
    least = steps.new_full(zeros.shape, torch.inf)
    for ratio in map(steps.new_tensor, RATIOS):
        distances = nearest(steps, ratio, zeros, scheme).sub_(zeros)
        cost = (steps - distances * ratio).square_().mul_(importance).sum(-1, keepdim=True)
        better = cost < least
        best, least = torch.where(better, ratio, best), torch.where(better, cost, least)
    for _ in range(REFITS):
        distances = nearest(steps, best, zeros, scheme).sub_(zeros)
        best = refit(steps, importance, distances, best)
    return best.squeeze(-1)

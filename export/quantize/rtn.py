"""Round to nearest, with scales from the extremes of each group, or from a search around them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import Codes, check_finite, from_groups, into_groups, nearest
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
    return from_groups(blocks, scales, zeros, scheme, inputs=weight.shape[1])


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
    for rows in row_chunks(blocks):
        steps = in_steps(blocks[rows], scales[rows])
        scales[rows] *= _best_ratio(steps, importance, zeros[rows].unsqueeze(-1), scheme)
    return scales, zeros


def row_chunks(blocks: Tensor) -> Iterator[slice]:
    """Slices of rows `(N, G, group)` whose temporary tensors fit into the cache."""
    step = max(1, CHUNK // blocks[0].numel())
    return (slice(start, start + step) for start in range(0, len(blocks), step))


def in_steps(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers `(N, G, group)` in units of their scales `(N, G)`; 0 where the scale is 0.

    Squares of steps neither overflow nor vanish, however large the weight is.
    """
    return blocks / scales.masked_fill(scales == 0, torch.inf).unsqueeze(-1)


def refit(steps: Tensor, importance: Tensor, distances: Tensor, ratios: Tensor) -> Tensor:
    """The ratios `(N, G, 1)` with which codes fit numbers best, by least squares.

    `distances` are codes minus zero points; a group in which all are 0 keeps its ratio.
    """
    weighted = distances * importance
    squares = (weighted * distances).sum(-1, keepdim=True)
    best = (weighted * steps).sum(-1, keepdim=True) / squares
    return torch.where(squares > 0, best, ratios)


def _best_ratio(steps: Tensor, importance: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """The ratios `(N, G)` with the least error, for numbers in units of the first scale."""
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

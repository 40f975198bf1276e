"""Weights in int8 with one scale per output, for products of int8 with int8.

Knows the format of `DynamicQuantizeMatMul`, which quantizes the inputs itself, at each call. Does
not know graphs or files.
"""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import check_finite

LARGEST = 127
"""-128 is left out, so that codes and their negatives are alike."""


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output to 255 steps that reach its number of largest magnitude.

    Args:
        weight: float32 `(N, K)`.

    Returns:
        int8 `(K, N)`, contiguous, and scales, float32 `(N,)`, 0 where an output is 0 throughout.

    Raises:
        ExportError: a number of the weight is infinite or not a number.
    """
    check_finite(weight)
    scales = weight.abs().amax(1) / LARGEST
    steps = weight / scales.masked_fill(scales == 0, torch.inf).unsqueeze(1)
    codes = steps.round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return codes.T.contiguous(), scales

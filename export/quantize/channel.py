"""Weights in 8 bits with one scale per output, for products of 8-bit integers.

Knows the format of `DynamicQuantizeMatMul`, which quantizes the inputs itself, at each call. Does
not know graphs or files.
"""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import check_finite

LARGEST = 127
"""-128 is left out, so that codes and their negatives are alike."""

ZERO_POINT = 128
"""What stands for 0. With signed weights the kernel for AVX2 without VNNI adds pairs of products in
16 bits, which saturate: an error of 4 % in a product where rounding alone costs half a percent."""


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output to 255 steps that reach its number of largest magnitude.

    Args:
        weight: float32 `(N, K)`.

    Returns:
        uint8 `(K, N)`, contiguous, and scales, float32 `(N,)`, 0 where an output is 0 throughout:
        a number is `(code - ZERO_POINT) * scale`.

    Raises:
        ExportError: a number of the weight is infinite or not a number.
    """
    check_finite(weight)
    scales = weight.abs().amax(1) / LARGEST
    steps = weight / scales.masked_fill(scales == 0, torch.inf).unsqueeze(1)
    codes = steps.round_().clamp_(-LARGEST, LARGEST).add_(ZERO_POINT).to(torch.uint8)
    return codes.T.contiguous(), scales

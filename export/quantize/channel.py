"""Weights in 8 bits with one scale per output, for products of 8-bit integers.

This is the format of `DynamicQuantizeMatMul`, which quantizes the inputs itself, at each call.
"""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import check_finite

LARGEST = 127
"""Of a code, and of the sum of two neighbours; -128 is left out, so that codes and their negatives
are alike.

The kernel for AVX2 without VNNI adds the products of two neighbours with activations, which are at
most 255, in 16 bits. Sums beyond 128 could saturate there: an error of 4 % in a product where
rounding alone costs half a percent. Rounding adds 1 at most."""


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output to the finest steps at which no kernel saturates.

    A step is the largest magnitude of a number, or of the sum of two neighbours, over `LARGEST`.

    Args:
        weight: float32 `(N, K)`.

    Returns:
        int8 `(K, N)`, contiguous, and scales, float32 `(N,)`, 0 where an output is 0 throughout:
        a number is `code * scale`.

    Raises:
        ExportError: a number of the weight is infinite or not a number.
    """
    check_finite(weight)
    reach = weight.abs().amax(1)
    if weight.shape[1] > 1:
        reach = torch.maximum(reach, (weight[:, :-1] + weight[:, 1:]).abs_().amax(1))
    scales = reach / LARGEST
    steps = weight / scales.masked_fill(scales == 0, torch.inf).unsqueeze(1)
    codes = steps.round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return codes.T.contiguous(), scales

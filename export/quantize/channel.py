"""8-bit weights with one scale per output, for products of 8-bit integers.

The format of `MatMulIntegerToFloat`, before which the graph rounds its inputs at each call.
"""

import torch
from torch import Tensor

from ortolan.export.quantize.blocks import check_finite

LARGEST = 127
"""Largest code, and largest sum of two neighboring codes; -128 is unused, for symmetry.

AVX2 kernels without VNNI multiply two neighbors by activations of up to 255, and add them in 16
bits. Sums above 128 could saturate there, an error of 4 % in a product where rounding costs half a
percent. Rounding adds at most 1."""


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output of `(N, K)` with the finest step at which no kernel saturates.

    The step is the largest magnitude of a number, or of a sum of two neighbors, over `LARGEST`.
    Returns codes `(K, N)` and scales `(N,)`, which are 0 for outputs that are 0.
    """
    check_finite(weight)
    reach = weight.abs().amax(1)
    if weight.shape[1] > 1:
        reach = torch.maximum(reach, (weight[:, :-1] + weight[:, 1:]).abs_().amax(1))
    scales = reach / LARGEST
    steps = weight / scales.masked_fill(scales == 0, torch.inf).unsqueeze(1)
    codes = steps.round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return codes.T.contiguous(), scales

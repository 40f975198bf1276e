"""Fast products of float32 matrices.

PyTorch calls MKL, which limits itself to AVX2 on processors from other vendors. oneDNN uses AVX-512
on all of them: twice as fast on an EPYC of 2024, and as exact.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_HAS_ONEDNN: bool = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` in float32.

    Args:
        x: `(..., K)`.
        weight: `(N, K)`.
    """
    is_plain = x.dtype == weight.dtype == torch.float32 and min(x.numel(), weight.numel()) > 0
    if not (_HAS_ONEDNN and is_plain):
        return F.linear(x, weight)
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        weight = weight.contiguous()  # oneDNN is slow with gaps between rows
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out

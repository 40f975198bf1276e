"""A causal convolution of each channel by itself, over a text that goes on.

Shape letters: B batch, S new tokens, C channels, W taps.

Source: the operator CausalConvWithState of onnxruntime (com.microsoft, version 1). Its kernel takes
a tenth of the time of joining, cutting and convolving, for one token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(
    x_BCS: Tensor, weight_C1W: Tensor, bias_C: Tensor | None, before_BCX: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue a convolution by some tokens; one node while `torch.onnx.export` traces.

    Args:
        x_BCS: the new tokens.
        weight_C1W: the last tap is the token's own.
        bias_C: added to each channel.
        before_BCX: the W - 1 tokens before them; zeros at the start of a text.

    Returns:
        `(B, C, S)`, and the last W - 1 tokens.
    """
    if torch.onnx.is_in_onnx_export() and weight_C1W.shape[2] > 1:
        return _node(x_BCS, weight_C1W, bias_C, before_BCX)
    reach_BCX = torch.cat((before_BCX, x_BCS), -1)
    out_BCS = F.conv1d(reach_BCX, weight_C1W, bias_C, groups=weight_C1W.shape[0])
    return out_BCS, reach_BCX[..., x_BCS.shape[2] :]


def _node(
    x_BCS: Tensor, weight_C1W: Tensor, bias_C: Tensor | None, before_BCX: Tensor
) -> tuple[Tensor, Tensor]:
    # The node could bend what it gives by SiLU as well; two nodes after it are faster.
    out_BCS, after_BCX = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::CausalConvWithState",
        (x_BCS, weight_C1W, bias_C, before_BCX),
        {"activation": "none"},
        dtypes=(x_BCS.dtype, before_BCX.dtype),
        shapes=(x_BCS.shape, before_BCX.shape),
        version=1,
    )
    return out_BCS, after_BCX

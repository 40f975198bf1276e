"""Causal convolution per channel, continued from a window, and the LFM2 mixer built on it.

Shape letters: B batch, S new tokens, C channels, W taps, X = W - 1, E model width.

Source: the onnxruntime operator CausalConvWithState (com.microsoft, version 1). For one token, its
kernel takes a tenth of the time of concatenating, slicing and convolving.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import ShortConvConfig
from ortolan.modeling.layers.cache import Memory
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.layers.ops import split


def convolve(
    x_BCS: Tensor, weight_C1W: Tensor, bias_C: Tensor | None, before_BCX: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue a convolution; one node while `torch.onnx.export` traces.

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
    # The node could apply SiLU too, but two separate nodes are faster.
    out_BCS, after_BCX = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::CausalConvWithState",
        (x_BCS, weight_C1W, bias_C, before_BCX),
        {"activation": "none"},
        dtypes=(x_BCS.dtype, before_BCX.dtype),
        shapes=(x_BCS.shape, before_BCX.shape),
        version=1,
    )
    return out_BCS, after_BCX


class ShortConv(FixedMemoryMixer):
    """out(after * convolve(before * x)), as in LFM2 (Liquid AI 2025, "LFM2 Technical Report").

    Both gates and x come from one projection.
    """

    def __init__(self, config: ShortConvConfig, width: int) -> None:
        super().__init__(config)
        channels = config.channels
        self.project = PackedLinear(width, (channels,) * 3, bias=config.bias)
        self.conv = nn.Conv1d(channels, channels, config.taps, groups=channels, bias=config.bias)
        self.out = nn.Linear(channels, width, bias=config.bias)

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See the base class."""
        before, after, x = split(self.project(x_BSE), list(self.project.parts), -1)
        gated_BCS = (before * x).transpose(1, 2)
        mixed_BCS, window = convolve(gated_BCS, self.conv.weight, self.conv.bias, memory[0])
        return after * mixed_BCS.transpose(1, 2), (window,)

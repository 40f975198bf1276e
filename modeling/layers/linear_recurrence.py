"""Real-gated linear recurrent unit (De et al. 2024, "Griffin", section 2.4).

Shape letters: B batch, S new tokens, E model width, C channels, H blocks of channels, W channels
per block.
"""

import torch
from torch import Tensor, nn

from ortolan.modeling.config import LinearRecurrenceConfig
from ortolan.modeling.layers.cache import Memory
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.feed_forward import ACTIVATIONS
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer
from ortolan.modeling.layers.ops import softplus
from ortolan.modeling.layers.recurrence import Recurrence, recur

SHARPNESS = 8.0
"""The constant `c` of the paper."""


class LinearRecurrence(FixedMemoryMixer):
    """out(act(gate(x)) * unit(convolve(enter(x)))).

    Per channel, the unit computes h' = a h + sqrt(1 - a^2) (i x) with log a = -c r softplus(L) and
    gates r and i. The input of the first token is not scaled.
    """

    def __init__(self, config: LinearRecurrenceConfig, width: int) -> None:
        super().__init__(config)
        channels = config.channels
        self.activation = ACTIVATIONS[config.activation]
        self.enter = nn.Linear(width, channels)
        self.gate = nn.Linear(width, channels)
        self.conv = nn.Conv1d(channels, channels, config.taps, groups=channels)
        self.decay = nn.Parameter(torch.linspace(-4.3, -9.0, channels))  # a^c from 0.9 to 0.999
        self.input_gate = BlockLinear(channels, config.num_heads)
        self.recurrence_gate = BlockLinear(channels, config.num_heads)
        self.out = nn.Linear(channels, width)

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See the base class."""
        entering_BCS = self.enter(x_BSE).transpose(1, 2)
        conv_BCS, window = convolve(entering_BCS, self.conv.weight, self.conv.bias, memory[0])
        x_BSC = conv_BCS.transpose(1, 2)
        gate_BSC = torch.sigmoid(self.recurrence_gate(x_BSC))
        decay_BSC = -SHARPNESS * gate_BSC * softplus(self.decay)
        scale_BSC = torch.sqrt(1 - torch.exp(2 * decay_BSC))
        scale_BSC = torch.where(positions[..., None] == 0, 1.0, scale_BSC)
        added_BSC = x_BSC * torch.sigmoid(self.input_gate(x_BSC)) * scale_BSC
        # Every channel is a head of width 1 whose query and key are 1.
        one_BS11 = torch.ones_like(added_BSC[..., :1])[..., None]
        recurrence = Recurrence(one_BS11, one_BS11, added_BSC[..., None], decay_BSC)
        out_BSC1, after = recur(recurrence, memory[1])
        return out_BSC1[..., 0] * self.activation(self.gate(x_BSE)), (window, after)


class BlockLinear(nn.Module):
    """A block-diagonal linear layer, `(B, S, C)` to `(B, S, C)`."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        width = channels // blocks
        self.weight = nn.Parameter(torch.empty(blocks, width, width))
        self.bias = nn.Parameter(torch.zeros(blocks, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, x_BSC: Tensor) -> Tensor:
        """`(B, S, C)` to `(B, S, C)`."""
        x_BSH1W = torch.unflatten(x_BSC, -1, (self.weight.shape[0], 1, -1))
        out_BSH1W = x_BSH1W @ self.weight
        return (out_BSH1W[..., 0, :] + self.bias).flatten(2)

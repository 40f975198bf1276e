"""A short convolution between two gates (Liquid AI 2025, "LFM2 Technical Report").

Shape letters: B batch, S new tokens, E model width, C channels, W taps.
"""

from torch import Tensor, nn

from ortolan.modeling.config import ShortConvConfig
from ortolan.modeling.layers.cache import Memory
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.layers.ops import split


class ShortConv(FixedMemoryMixer):
    """out(after * convolve(before * x)): both gates and x come from one product.

    Args:
        config: its sizes.
        width: of the stream.
    """

    def __init__(self, config: ShortConvConfig, width: int) -> None:
        super().__init__(config)
        channels = config.channels
        self.project = PackedLinear(width, (channels,) * 3, bias=config.bias)
        self.conv = nn.Conv1d(channels, channels, config.taps, groups=channels, bias=config.bias)
        self.out = nn.Linear(channels, width, bias=config.bias)

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See `FixedMemoryMixer.mix`."""
        before, after, x = split(self.project(x_BSE), list(self.project.parts), -1)
        gated_BCS = (before * x).transpose(1, 2)
        mixed_BCS, window = convolve(gated_BCS, self.conv.weight, self.conv.bias, memory[0])
        return after * mixed_BCS.transpose(1, 2), (window,)

"""Selective state spaces: Mamba (Gu and Dao 2023) and Mamba 2 (Dao and Gu 2024).

Both update h' = exp(step A) h + step k x^T per head and return h'^T q + D x. The papers write B for
the key k, and C for the query q. As linear attention, the decay is step A and the value step x.

Shape letters: B batch, S new tokens, E model width, H heads, U channels per head, I all channels,
G groups, N state size per channel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import NormConfig, StateSpaceConfig
from ortolan.modeling.layers.cache import Memory
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.feed_forward import ACTIVATIONS
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import softplus, split
from ortolan.modeling.layers.recurrence import Recurrence, recur


class _StateSpace(FixedMemoryMixer):
    """Parts of both versions: projections, a convolution, and decays, the logarithm of -A."""

    def __init__(
        self, config: StateSpaceConfig, width: int, parts: tuple[int, ...], decays: tuple[int, ...]
    ) -> None:
        super().__init__(config)
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.project = PackedLinear(width, parts, bias=config.bias)
        self.conv = nn.Conv1d(
            config.mixed, config.mixed, config.taps, groups=config.mixed, bias=config.conv_bias
        )
        self.decay = nn.Parameter(torch.arange(1.0, decays[-1] + 1).log().expand(decays).clone())
        self.skip = nn.Parameter(torch.ones(config.num_heads))
        self.out = nn.Linear(config.channels, width, bias=config.bias)

    def _convolved(self, x: Tensor, before_BCX: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve `(B, S, C)`; also return the window for the next token."""
        out_BCS, window = convolve(x.transpose(1, 2), self.conv.weight, self.conv.bias, before_BCX)
        return self.activation(out_BCS).transpose(1, 2), window

    def _recurred(
        self, x_BSI: Tensor, step_BSH: Tensor, key: Tensor, query: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Output of the recurrence, `(B, S, I)`, and its state after the last token.

        Args:
            x_BSI: output of the convolution.
            step_BSH: step size per token and head.
            key: `(B, S, G * N)`.
            query: `(B, S, G * N)`.
            memory: state, `(B, H, N, U)`.
        """
        x_BSHU = torch.unflatten(x_BSI, -1, (self.config.num_heads, -1))
        rates = -self.decay.exp()
        decay = step_BSH * rates if rates.dim() == 1 else step_BSH[..., None] * rates
        key_BSGN, query_BSGN = (
            torch.unflatten(tensor, -1, (self.config.groups, -1)) for tensor in (key, query)
        )
        recurrence = Recurrence(query_BSGN, key_BSGN, x_BSHU * step_BSH[..., None], decay)
        out_BSHU, after = recur(recurrence, memory)
        return (out_BSHU + x_BSHU * self.skip[:, None]).flatten(2), after


class ChannelStateSpace(_StateSpace):
    """Mamba 1: a step size per channel, computed from the output of the convolution."""

    def __init__(self, config: StateSpaceConfig, rank: int, width: int) -> None:
        inner, size = config.channels, config.state_dim
        super().__init__(config, width, (inner, inner), (inner, size))
        self.select = PackedLinear(inner, (rank, size, size), bias=False)
        self.step_size = nn.Linear(rank, inner)
        self.inner_norms = nn.ModuleList(
            norm(config.inner_norm, part) for part in self.select.parts
        )

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See the base class."""
        x, gate = split(self.project(x_BSE), list(self.project.parts), -1)
        x_BSI, window = self._convolved(x, memory[0])
        parts = split(self.select(x_BSI), list(self.select.parts), -1)
        rank, key, query = (
            normed(part) for normed, part in zip(self.inner_norms, parts, strict=True)
        )
        step_BSI = softplus(self.step_size(rank))
        out_BSI, after = self._recurred(x_BSI, step_BSI, key, query, memory[1])
        return out_BSI * F.silu(gate), (window, after)


class HeadStateSpace(_StateSpace):
    """Mamba 2: a step size per head, computed from the input like keys and queries."""

    def __init__(self, config: StateSpaceConfig, width: int) -> None:
        heads, inner = config.num_heads, config.channels
        super().__init__(config, width, (inner, config.mixed, heads), (heads,))
        self.step_bias = nn.Parameter(torch.zeros(heads))
        self.norm = GroupedNorm(config.norm, inner, config.groups) if config.norm else None

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See the base class."""
        config = self.config
        gate, mixed, step = split(self.project(x_BSE), list(self.project.parts), -1)
        mixed, window = self._convolved(mixed, memory[0])
        shared = config.groups * config.state_dim
        x_BSI, key, query = split(mixed, [config.channels, shared, shared], -1)
        step_BSH = softplus(step + self.step_bias)
        if config.steps is not None:
            step_BSH = step_BSH.clamp(*config.steps)
        out_BSI, after = self._recurred(x_BSI, step_BSH, key, query, memory[1])
        gated_BSI = out_BSI * F.silu(gate)
        return gated_BSI if self.norm is None else self.norm(gated_BSI), (window, after)


class GroupedNorm(nn.Module):
    """RMS norm of each group of channels."""

    def __init__(self, config: NormConfig, width: int, groups: int) -> None:
        super().__init__()
        self.eps = config.eps
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., I)` to `(..., I)`."""
        if self.groups == 1:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        apart = torch.unflatten(x, -1, (self.groups, -1))
        width = apart.shape[-1]
        ones = torch.ones(width, dtype=x.dtype, device=x.device)
        return F.rms_norm(apart, (width,), ones, self.eps).flatten(-2) * self.weight


def state_space(config: StateSpaceConfig, width: int) -> FixedMemoryMixer:
    """The state space of a config: Mamba 1 with a step rank, otherwise Mamba 2."""
    if config.step_rank is None:
        return HeadStateSpace(config, width)
    return ChannelStateSpace(config, config.step_rank, width)

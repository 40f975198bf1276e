"""Linear attention with the gated delta rule (Yang et al. 2024, "Gated Delta Networks").

Shape letters: B batch, S new tokens, E model width, H value heads, K key heads, D key width,
U value width, C channels of queries, keys and values together.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import GatedDeltaConfig
from ortolan.modeling.layers.cache import Memory
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.fixed_memory import FixedMemoryMixer
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import softplus, split
from ortolan.modeling.layers.recurrence import Recurrence, recur

UNIT_EPSILON = 1e-6
"""Added to the squared length of a query or key before dividing by the length."""


class GatedDelta(FixedMemoryMixer):
    """Convolved queries, keys and values; a gated delta recurrence; a norm and a gate per head.

    The state S of a head follows equation 10 of the paper, with unit queries and keys:
    S' = a S (1 - b k k^T) + b v k^T, where log a = -exp(decay) softplus(step + bias).
    """

    def __init__(self, config: GatedDeltaConfig, width: int) -> None:
        super().__init__(config)
        self.config = config
        heads, values = config.num_heads, config.num_heads * config.value_dim
        # In order: queries, keys and values; the gate; rates b; steps.
        self.project = PackedLinear(width, (config.mixed, values, heads, heads), bias=False)
        self.conv = nn.Conv1d(
            config.mixed, config.mixed, config.taps, groups=config.mixed, bias=False
        )
        self.step_bias = nn.Parameter(torch.ones(heads))
        self.decay = nn.Parameter(torch.empty(heads).uniform_(0.01, 16).log())
        self.norm = norm(config.norm, config.value_dim)
        self.out = nn.Linear(values, width, bias=False)

    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """See the base class."""
        config = self.config
        parts = split(self.project(x_BSE), list(self.project.parts), -1)
        qkv, gate, rate_BSH, step_BSH = parts
        qkv_BCS, window = convolve(qkv.transpose(1, 2), self.conv.weight, None, memory[0])
        qkv = F.silu(qkv_BCS).transpose(1, 2)
        keys = config.num_key_heads * config.key_dim
        query, key, value = split(qkv, [keys, keys, config.num_heads * config.value_dim], -1)
        decay_BSH = -self.decay.exp() * softplus(step_BSH + self.step_bias)
        recurrence = Recurrence(
            self._unit(query),
            self._unit(key),
            torch.unflatten(value, -1, (config.num_heads, -1)),
            decay_BSH,
            torch.sigmoid(rate_BSH),
            config.key_dim**-0.5,
        )
        out_BSHU, after = recur(recurrence, memory[1])
        normed_BSHU = self.norm(out_BSHU)
        return normed_BSHU.flatten(2) * F.silu(gate), (window, after)

    def _unit(self, x: Tensor) -> Tensor:
        """Queries or keys scaled to length 1, `(B, S, K, D)`."""
        width = self.config.key_dim
        x_BSKD = torch.unflatten(x, -1, (-1, width))
        # A unit vector as one RMSNorm node: the root of the mean square times sqrt(width).
        scale = torch.full((width,), width**-0.5, dtype=x.dtype, device=x.device)
        return F.rms_norm(x_BSKD, (width,), scale, UNIT_EPSILON / width)

"""Queries, keys and values made of latents (DeepSeek-AI 2024, section 2.1).

The latents are expanded before the attention, so that it is one like any other, with a cache of
whole keys and values.

Shape letters: B batch, S new tokens, E model width, H heads, D head width, U value width,
R rotated channels.
"""

import torch
from torch import Tensor, nn

from ortolan.modeling.config import AttentionConfig, LatentConfig
from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import Heads, Rotary, split, split_heads
from ortolan.modeling.layers.rotation import turn


class LatentProjection(nn.Module):
    """A stream `(B, S, E)` to queries, keys and values, the last R channels of which are turned.

    Args:
        config: heads and widths.
        latent: ranks.
        width: of the stream.
    """

    def __init__(self, config: AttentionConfig, latent: LatentConfig, width: int) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_heads, config.head_dim
        self.rank, self.rotated = latent.rank, latent.rotated
        self.value_dim = config.value_width
        self.fixed = config.head_dim - latent.rotated
        self.query_latent: nn.Linear | None = None
        if latent.query_rank is not None:
            self.query_latent = nn.Linear(width, latent.query_rank, bias=latent.bias)
            self.query_norm = norm(latent.norm, latent.query_rank)
        inner = width if latent.query_rank is None else latent.query_rank
        self.query = nn.Linear(inner, self.heads * self.head_dim, bias=False)
        self.latent = nn.Linear(width, self.rank + self.rotated, bias=latent.bias)
        self.norm = norm(latent.norm, self.rank)
        each = self.fixed + self.value_dim
        self.key_value = nn.Linear(self.rank, self.heads * each, bias=False)

    def forward(self, x_BSE: Tensor, rotary: Rotary | None, step: StepLengths | None) -> Heads:
        """Heads of a stream; positions as in `ops.turn`."""
        x = x_BSE
        if self.query_latent is not None:
            x = self.query_norm(self.query_latent(x))
        query, turning = split_heads(self.query(x), self.head_dim, (self.fixed, self.rotated))
        latent, shared = split(self.latent(x_BSE), [self.rank, self.rotated], -1)
        parts = (self.fixed, self.value_dim)
        key, value = split_heads(self.key_value(self.norm(latent)), sum(parts), parts)
        turning = turning.flatten(-2)
        if rotary is not None:
            turning = turn(turning, rotary, step, width=self.rotated)
            shared = turn(shared, rotary, step, width=self.rotated)
        (turned,) = split_heads(turning, self.rotated, (self.rotated,))
        query = torch.cat((query, turned), -1)
        shared_BSHR = shared[:, :, None].expand(-1, -1, self.heads, -1)
        key = torch.cat((key, shared_BSHR), -1)
        return Heads(query.flatten(-2), key.flatten(-2), value.flatten(-2))

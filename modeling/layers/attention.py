"""Self-attention and cross-attention: projections around the operations of `ops.py`.

Shape letters: B batch, S new tokens, T tokens of the source, E model width, H query heads,
D head width, U value width, R rotated channels.
"""

import torch
from torch import Tensor, nn

from ortolan.modeling.config import (
    AttentionConfig,
    LatentConfig,
    Positions,
    RelativeBiasPositions,
)
from ortolan.modeling.layers.cache import LayerCache, Pick, StepLengths, same
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import (
    Heads,
    attention,
    attention_weights,
    cached_attention,
    cross_attention,
    cross_attention_weights,
    cross_states,
    over_heads,
    split,
    split_heads,
    split_projections,
)
from ortolan.modeling.layers.rotation import turn
from ortolan.modeling.layers.scores import Relative


class SelfAttention(nn.Module):
    """Self-attention: one projection to queries, keys and values, attention, and a readout."""

    def __init__(
        self, config: AttentionConfig, width: int, *, positions: Positions | None = None
    ) -> None:
        super().__init__()
        self.config = config
        parts = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.value_width,
        )
        self.qkv = (
            PackedLinear(width, parts, bias=config.qkv_bias)
            if config.latent is None
            else LatentProjection(config, config.latent, width)
        )
        counts = (1, 1) if config.norm_over == "head" else (config.num_heads, config.num_kv_heads)
        self.query_norm, self.key_norm = (
            norm(config.query_key_norm, count * config.head_dim) for count in counts
        )
        self.gate: nn.Linear | None = (
            nn.Linear(width, config.num_heads * config.value_width, bias=config.qkv_bias)
            if config.gate
            else None
        )
        self.out = nn.Linear(config.num_heads * config.value_width, width, bias=config.out_bias)
        self.sinks = nn.Parameter(torch.zeros(config.num_heads)) if config.sinks else None
        self.relative_bias: nn.Embedding | None = None
        match positions:
            case RelativeBiasPositions(buckets=buckets, each_layer=True):
                self.relative_bias = nn.Embedding(buckets, config.num_heads)

    def forward(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        relative: Relative | None = None,
        lengths: Tensor | None = None,
        *,
        past: LayerCache | None = None,
        step: StepLengths | None = None,
        pick: Pick = same,
    ) -> tuple[Tensor, LayerCache | None]:
        """`(B, S, E)` to `(B, S, E)`, and the extended cache if there is a past; see `ops`.

        `pick` selects the tokens whose attention output `(B, S, H * U)` is read out.
        """
        qkv, rotary = self._projections(x_BSE, rotary, step)
        spec, relative, sinks, present = self.config, self._own(relative), self.sinks, None
        if past is None or step is None:
            attended = attention(
                qkv, rotary, spec=spec, relative=relative, lengths=lengths, sinks=sinks
            )
        else:
            attended, present = cached_attention(
                qkv, past, step, rotary, spec=spec, relative=relative, sinks=sinks
            )
        attended, x = pick(attended), pick(x_BSE)
        if self.gate is not None:
            attended = attended * torch.sigmoid(self.gate(x))
        return self.out(attended), present

    def weights(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        relative: Relative | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Attention weights of `forward`, float32 `(B, H, S, S)`."""
        qkv, rotary = self._projections(x_BSE, rotary)
        return attention_weights(
            qkv,
            rotary,
            spec=self.config,
            relative=self._own(relative),
            lengths=lengths,
            sinks=self.sinks,
        )

    def _projections(
        self, x_BSE: Tensor, rotary: Rotary | None, step: StepLengths | None = None
    ) -> tuple[Tensor | Heads, Rotary | None]:
        """Queries, keys and values, and the rotation left for the attention op to apply."""
        spec = self.config
        if isinstance(self.qkv, LatentProjection):
            return self.qkv(x_BSE, rotary, step), None
        qkv: Tensor = self.qkv(x_BSE)
        if spec.clip is not None:
            qkv = qkv.clamp(-spec.clip, spec.clip)
        has_angles = rotary is not None and rotary.of_tokens
        if spec.query_key_norm is None and not has_angles:
            return qkv, rotary
        query, key, value = split_projections(qkv, spec)
        if rotary is not None and spec.norm_after_rotary:
            query, key = (turn(part, rotary, step, width=spec.head_dim) for part in (query, key))
            rotary = None
        query, key = self._normed(query, key)
        if rotary is not None and has_angles:
            query, key = (turn(part, rotary, step, width=spec.head_dim) for part in (query, key))
            rotary = None
        return Heads(query, key, value), rotary

    def _normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys after their norms, if the layer has them."""
        spec = self.config
        if spec.query_key_norm is None:
            return query, key
        if spec.norm_over == "all":
            return self.query_norm(query), self.key_norm(key)
        return (
            over_heads(query, self.query_norm, spec.head_dim),
            over_heads(key, self.key_norm, spec.head_dim),
        )

    def _own(self, relative: Relative | None) -> Relative | None:
        """Relative positions of the stack, with the table of this layer if it has one."""
        if relative is None or self.relative_bias is None:
            return relative
        return relative.by(self.relative_bias)


class CrossAttention(nn.Module):
    """Attention to a source, whose keys and values are computed once."""

    def __init__(self, config: AttentionConfig, width: int) -> None:
        super().__init__()
        self.config = config
        keys, values = (
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.value_width,
        )
        self.q = nn.Linear(width, config.num_heads * config.head_dim, bias=config.qkv_bias)
        self.kv = PackedLinear(width, (keys, values), bias=config.qkv_bias)
        self.out = nn.Linear(config.num_heads * config.value_width, width, bias=config.out_bias)

    def states(self, source_BTE: Tensor) -> LayerCache:
        """Keys and values of a source `(B, T, E)`."""
        return cross_states(self.kv(source_BTE), spec=self.config)

    def forward(self, x_BSE: Tensor, states: LayerCache, lengths: Tensor | None) -> Tensor:
        """`(B, S, E)` to `(B, S, E)`; see `ops.cross_attention`."""
        attended = cross_attention(self.q(x_BSE), states, lengths, spec=self.config)
        out: Tensor = self.out(attended)
        return out

    def weights(self, x_BSE: Tensor, states: LayerCache, lengths: Tensor | None) -> Tensor:
        """Attention weights of `forward`, float32 `(B, H, S, T)`."""
        return cross_attention_weights(self.q(x_BSE), states, lengths, spec=self.config)


class LatentProjection(nn.Module):
    """Queries, keys and values from latents (DeepSeek-AI 2024, section 2.1).

    The latents are expanded to full heads before attention, so the cache holds keys and values as
    in other layers. The last R channels of queries and keys are rotated.
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
        expanded = self.fixed + self.value_dim
        self.key_value = nn.Linear(self.rank, self.heads * expanded, bias=False)

    def forward(self, x_BSE: Tensor, rotary: Rotary | None, step: StepLengths | None) -> Heads:
        """Project `(B, S, E)`; positions as in `rotation.turn`."""
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

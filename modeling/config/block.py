"""One layer as data: its mixer, its feed-forward part, and the placement of their norms."""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config.base import Config, Count, Positive, Size
from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.config.mixers import (
    CAPACITY,
    GatedDeltaConfig,
    LayerState,
    LinearRecurrenceConfig,
    ShortConvConfig,
    StateSpaceConfig,
)
from ortolan.modeling.config.mixture import MixtureConfig
from ortolan.modeling.config.positions import NoPositions, RotaryPositions
from ortolan.modeling.errors import ConfigError

Placement = Literal[
    "pre", "post", "pre_residual", "inner_post", "sandwich", "parallel", "parallel_norms"
]
"""Placement of a block's norms; see `BlockConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig(Config):
    """Queries, keys and values projected from small latents (DeepSeek-AI 2024, "MLA")."""

    query_rank: Size | None  # width of the latent of queries; None to project them from the stream
    rank: Size  # width of the latent of keys and values, without the rotated channels
    rotated: Size  # last channels of each query and key; the heads share those of the keys
    norm: NormConfig  # of both latents
    bias: bool = False  # of the projections to the latents


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig(Config):
    """Attention; `num_kv_heads` makes it multi-head, grouped or multi-query.

    Attributes:
        sliding_window: number of tokens that a token attends to, itself included; an encoder
            attends to as many after it.
        sinks: each head has a trained score for one more key, whose value is zero, which takes a
            part of the weights (Xiao et al. 2024).
        gate: the heads are multiplied, channel by channel, by sigmoids of a projection of the
            stream (Qiu et al. 2025).
    """

    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    scale: float  # factor on the scores; usually `head_dim ** -0.5`
    qkv_bias: bool = False
    out_bias: bool = False
    sliding_window: Size | None = None
    softcap: float | None = None  # scores become `softcap * tanh(scores / softcap)`
    causal: bool = True  # tokens attend to earlier tokens only, not to the whole sequence or source
    value_dim: Size | None = None  # None for the channels of a key
    rotary: RotaryPositions | NoPositions | None = None  # of this layer, if not the stack's
    query_key_norm: NormConfig | None = None  # norm of queries and keys, before their product
    norm_over: Literal["head", "all"] = "head"  # the channels of each head, or those of all
    norm_after_rotary: bool = False  # the norm follows the rotation
    clip: Positive | None = None  # bound of the magnitude of queries, keys and values
    latent: LatentConfig | None = None
    sinks: bool = False
    gate: bool = False

    @property
    def value_width(self) -> int:
        """Channels of a value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The keys and the values of all tokens."""
        return tuple(
            LayerState(name=name, shape=(self.num_kv_heads, CAPACITY, width), update="append")
            for name, width in (("key", self.head_dim), ("value", self.value_width))
        )

    def _check(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"attention: num_heads must be divisible by num_kv_heads (got {self.num_heads} "
                f"and {self.num_kv_heads}). Check num_key_value_heads."
            )
        if self.latent is not None and (
            self.num_kv_heads != self.num_heads
            or self.latent.rotated > self.head_dim
            or (self.query_key_norm, self.clip, self.qkv_bias) != (None, None, False)
        ):
            raise ConfigError(
                "attention: latents need a key for every head, at most all of its channels "
                "rotated, and no norm, bound or bias of queries and keys. Correct the config."
            )


Mixer = (
    AttentionConfig | ShortConvConfig | GatedDeltaConfig | StateSpaceConfig | LinearRecurrenceConfig
)
"""The part of a block that mixes tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardConfig(Config):
    """`mlp`: down(act(up(x))). `gated`: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

    kind: Literal["mlp", "gated"]
    intermediate_size: Size
    activation: Activation
    bias: bool = False  # of every matrix
    down_bias: bool | None = None  # of the last matrix; None for `bias`


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig(Config):
    """One layer.

    A sublayer `f` and its norms are placed as follows::

        pre             x + f(norm(x))
        post            norm(x + f(x))
        pre_residual    norm(x) + f(norm(x))
        inner_post      x + norm(f(x))
        sandwich        x + norm(f(norm(x))), two norms
        parallel        x + mixer(norm(x)) + mlp(norm(x)) (Wang and Komatsuzaki 2021, GPT-J)
        parallel_norms  the same with two norms

    What a sublayer adds to the stream is multiplied by `residual_scale`, and with `layer_scale` by
    a trained vector (Touvron et al. 2021, "CaiT").

    Attributes:
        feature_part: the part of the vectors of an image that is added to the output of the block,
            where part 0 replaces embeddings (Meng et al. 2024, "DeepStack"); 0 to add nothing.
    """

    mixer: Mixer
    feed_forward: FeedForwardConfig | MixtureConfig | None
    norm: NormConfig
    placement: Placement = "pre"
    cross_attention: AttentionConfig | None = None  # to a source, between the mixer and the mlp
    attention_norm: bool = True  # False if the self-attention alone has no norm
    residual_scale: float = 1.0
    layer_scale: bool = False
    feature_part: Count = 0

    @property
    def attention(self) -> AttentionConfig:
        """The mixer; ConfigError if it is not attention."""
        if not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"mixer: expected attention, got {type(self.mixer).__name__}, which is not "
                "supported here."
            )
        return self.mixer

    @property
    def dense(self) -> FeedForwardConfig:
        """The feed-forward part; ConfigError if it is missing, or a mixture of experts."""
        if not isinstance(self.feed_forward, FeedForwardConfig):
            got = "no MLP" if self.feed_forward is None else "a mixture of experts"
            raise ConfigError(
                f"feed_forward: expected one MLP for all tokens, got {got}, which this family's "
                "format cannot express."
            )
        return self.feed_forward

    @property
    def parallel(self) -> bool:
        """Whether both sublayers read the input of the layer."""
        return self.placement in ("parallel", "parallel_norms")

    def _check(self) -> None:
        cross = self.cross_attention
        is_plain = not self.parallel and cross is None and self.feed_forward is not None
        if self.parallel and (cross is not None or self.feed_forward is None):
            raise ConfigError(
                "block: a parallel block needs an mlp and no cross-attention. Choose another "
                "placement."
            )
        if self.layer_scale and not is_plain:
            raise ConfigError(
                "block: layer_scale is for a mixer followed by an mlp, without cross-attention. "
                "Set it to False."
            )
        if cross is None:
            return
        if not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"block: cross-attention needs attention, not {type(self.mixer).__name__}. "
                "Leave one of them out."
            )
        if cross != replace(
            cross,
            rotary=None,
            query_key_norm=None,
            clip=None,
            latent=None,
            sinks=False,
            gate=False,
        ):
            raise ConfigError(
                "cross_attention: rotary positions, norms, bounds, sinks and gates are for "
                "self-attention. Leave them out."
            )

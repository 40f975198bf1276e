"""One layer as data: its mixer, its feed-forward part, and the placement of their norms."""

from dataclasses import dataclass, replace
from typing import Literal

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
class LatentConfig:
    """Queries, keys and values projected from small latents (DeepSeek-AI 2024, "MLA").

    Attributes:
        query_rank: width of the latent of queries; None to project them from the stream.
        rank: width of the latent of keys and values, without the rotated channels.
        rotated: last channels of each query and key; the heads share those of the keys.
        norm: of both latents.
        bias: of the projections to the latents.
    """

    query_rank: int | None
    rank: int
    rotated: int
    norm: NormConfig
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Attention; `num_kv_heads` makes it multi-head, grouped or multi-query.

    Attributes:
        scale: factor on the scores; usually `head_dim ** -0.5`.
        sliding_window: number of tokens that a token attends to, itself included; an encoder
            attends to as many after it. None for all.
        softcap: scores become `softcap * tanh(scores / softcap)`; None for plain scores.
        causal: tokens attend to earlier tokens only, not to the whole sequence or source.
        value_dim: channels of a value; None for those of a key.
        rotary: positions of this layer, if they differ from the stack's.
        query_key_norm: norm of queries and keys, before their product.
        norm_over: the norm spans the channels of each head, or those of all heads.
        norm_after_rotary: the norm follows the rotation.
        clip: bound of the magnitude of queries, keys and values.
        out_norm: norm of the concatenated heads, before their readout.
        latent: how queries, keys and values are projected; None for one matrix.
        sinks: each head has a trained score for one more key, whose value is zero, which takes a
            part of the weights (Xiao et al. 2024).
        gate: the heads are multiplied, channel by channel, by sigmoids of a projection of the
            stream (Qiu et al. 2025).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    out_bias: bool = False
    sliding_window: int | None = None
    softcap: float | None = None
    causal: bool = True
    value_dim: int | None = None
    rotary: RotaryPositions | NoPositions | None = None
    query_key_norm: NormConfig | None = None
    norm_over: Literal["head", "all"] = "head"
    norm_after_rotary: bool = False
    clip: float | None = None
    out_norm: NormConfig | None = None
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

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim, self.value_width) < 1:
            raise ConfigError(
                f"attention: needs at least one head of at least one channel (got "
                f"{self.num_heads} and {self.num_kv_heads} heads of {self.head_dim}). "
                "Check num_attention_heads, num_key_value_heads and head_dim."
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"attention: num_heads must be divisible by num_kv_heads (got {self.num_heads} "
                f"and {self.num_kv_heads}). Check num_key_value_heads."
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(
                f"attention: sliding_window must be at least 1 (got {self.sliding_window}). "
                "Leave it out for full attention."
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(
                f"attention: the bound of queries, keys and values must be positive (got "
                f"{self.clip}). Check clip_qkv."
            )
        if self.latent is not None and (
            self.num_kv_heads != self.num_heads
            or not 0 < self.latent.rotated <= self.head_dim
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
class FeedForwardConfig:
    """`mlp`: down(act(up(x))). `gated`: down(act(gate(x)) * up(x)) (Shazeer 2020).

    Attributes:
        activation: `xielu` has two trained numbers in each layer (Huang and Schlag 2024).
        bias: of every matrix.
        down_bias: of the last matrix; None for `bias`.
        inner_norm: norm of the input of the last matrix.
    """

    kind: Literal["mlp", "gated"]
    intermediate_size: int
    activation: Activation | Literal["xielu"]
    bias: bool = False
    down_bias: bool | None = None
    inner_norm: NormConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """One layer.

    Attributes:
        placement: of the norms, where `f` is a sublayer:

            `pre`            x + f(norm(x))
            `post`           norm(x + f(x))
            `pre_residual`   norm(x) + f(norm(x))
            `inner_post`     x + norm(f(x))
            `sandwich`       x + norm(f(norm(x))), two norms
            `parallel`       x + mixer(norm(x)) + mlp(norm(x)) (Wang and Komatsuzaki 2021, "GPT-J")
            `parallel_norms` the same with two norms

        cross_attention: to the source of an encoder-decoder, between the mixer and the mlp.
        attention_norm: False if the self-attention alone has no norm.
        residual_scale: multiplies what each sublayer adds to the stream.
        layer_scale: so does a trained vector of each sublayer (Touvron et al. 2021, "CaiT").
        feature_part: the part of the vectors of an image that is added to the output of the block,
            where part 0 replaces embeddings (Meng et al. 2024, "DeepStack"); 0 to add nothing.
    """

    mixer: Mixer
    feed_forward: FeedForwardConfig | MixtureConfig | None
    norm: NormConfig
    placement: Placement = "pre"
    cross_attention: AttentionConfig | None = None
    attention_norm: bool = True
    residual_scale: float = 1.0
    layer_scale: bool = False
    feature_part: int = 0

    @property
    def attention(self) -> AttentionConfig:
        """The mixer, if it is attention.

        Raises:
            ConfigError: it is not.
        """
        if not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"mixer: expected attention, got {type(self.mixer).__name__}, which is not "
                "supported here."
            )
        return self.mixer

    @property
    def dense(self) -> FeedForwardConfig:
        """The feed-forward part, if it is not a mixture of experts.

        Raises:
            ConfigError: it is missing, or a mixture.
        """
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

    def __post_init__(self) -> None:
        if self.parallel and (self.cross_attention is not None or self.feed_forward is None):
            raise ConfigError(
                "block: a parallel block needs an mlp and no cross-attention. "
                "Choose another placement."
            )
        cross = self.cross_attention
        if self.layer_scale and (self.parallel or cross is not None or self.feed_forward is None):
            raise ConfigError(
                "block: layer_scale is for a mixer followed by an mlp, without cross-attention. "
                "Set it to False."
            )
        if cross is not None and not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"block: cross-attention needs attention, not {type(self.mixer).__name__}. "
                "Leave one of them out."
            )
        if cross is not None and cross != _of_a_source(cross):
            raise ConfigError(
                "cross_attention: rotary positions, norms, bounds, sinks and gates are for "
                "self-attention. Leave them out."
            )


def _of_a_source(cross: AttentionConfig) -> AttentionConfig:
    """Attention without the parts of self-attention."""
    return replace(
        cross,
        rotary=None,
        query_key_norm=None,
        clip=None,
        out_norm=None,
        latent=None,
        sinks=False,
        gate=False,
    )

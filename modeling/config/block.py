"""One layer as data: its mixer, its feed-forward, and the placement of their norms."""

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
"""Where a block has its norms; see `BlockConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Queries, keys and values made of few numbers a token (DeepSeek-AI 2024, "MLA").

    Attributes:
        query_rank: numbers that queries are made of; None for the stream itself.
        rank: numbers that keys and values are made of, those that are rotated not among them.
        rotated: last channels of each query and key; all heads have the same ones in their keys.
        norm: of both.
        bias: of the products that make them of the stream.
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
        sliding_window: tokens that each attends to, itself included, of those before it, and as
            many of those after it where these are seen; None for all.
        softcap: scores become `softcap * tanh(scores / softcap)`; None for plain scores.
        causal: tokens attend only to those before them; else to the whole text, or source.
        value_dim: channels of each value; None for as many as a key's.
        readout: `projection` maps the heads, side by side, by one more matrix. `sum` adds them
            up: with values as wide as the model, the map of head h is `V_h X A_h`.
        rotary: of this layer in place of the stack's positions in the scores, such as another
            base, or none; None for the stack's own.
        query_key_norm: of queries and keys, before their product; None without one.
        norm_over: what it spans: the channels of each head, or of all heads.
        norm_after_rotary: queries and keys are turned before it, not after it.
        clip: bound of the magnitude of queries, keys and values; None without one.
        out_norm: of the heads side by side, before their readout; None without one.
        latent: how queries, keys and values are made of the stream; None for one product.
        sinks: each head has a trained score of one more key, whose value is zero: it takes
            a part of the weights (Xiao et al. 2024).
        gate: every channel of the heads is multiplied by the sigmoid of a number that is linear in
            the stream (Qiu et al. 2025).
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
    readout: Literal["projection", "sum"] = "projection"
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
        """Channels of each value."""
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
                f"attention: expected at least one head of at least one channel, got "
                f"{self.num_heads} and {self.num_kv_heads} heads of {self.head_dim}. "
                "Check num_attention_heads, num_key_value_heads and head_dim."
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"attention: expected num_heads divisible by num_kv_heads, got {self.num_heads} "
                f"and {self.num_kv_heads}. Check num_key_value_heads."
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(
                f"attention: expected a sliding window of at least 1, got {self.sliding_window}. "
                "Leave it out for full attention."
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(
                f"attention: expected a positive bound of queries, keys and values, got "
                f"{self.clip}. Check clip_qkv."
            )
        if self.latent is not None and (
            self.num_kv_heads != self.num_heads
            or not 0 < self.latent.rotated <= self.head_dim
            or (self.query_key_norm, self.clip, self.qkv_bias) != (None, None, False)
        ):
            raise ConfigError(
                "attention: expected keys for every head, at most all of its channels rotated, and "
                "no norm, bound nor bias of queries and keys where they are made of latents, got "
                "others. Correct it."
            )
        if self.readout == "sum" and self.out_bias:
            raise ConfigError(
                "attention: expected no out_bias where the heads are added up, got one. "
                "Leave it out."
            )


Mixer = (
    AttentionConfig | ShortConvConfig | GatedDeltaConfig | StateSpaceConfig | LinearRecurrenceConfig
)
"""What mixes the tokens of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardConfig:
    """`mlp`: down(act(up(x))). `gated`: down(act(gate(x)) * up(x)) (Shazeer 2020).

    Attributes:
        activation: `xielu` bends by two trained numbers of each layer (Huang and Schlag 2024).
        bias: every product has one.
        down_bias: the last product has one; None for as the others.
        hidden_layers: of an mlp; the second one is `act(middle(act(up(x))))`.
        inner_norm: of what enters the last product; None without one.
    """

    kind: Literal["mlp", "gated"]
    intermediate_size: int
    activation: Activation | Literal["xielu"]
    bias: bool = False
    hidden_layers: Literal[1, 2] = 1
    down_bias: bool | None = None
    inner_norm: NormConfig | None = None

    def __post_init__(self) -> None:
        if self.hidden_layers not in (1, 2) or (self.kind == "gated" and self.hidden_layers == 2):
            raise ConfigError(
                f"feed_forward: expected one hidden layer, or two of an mlp, got "
                f"{self.hidden_layers} of kind {self.kind}. Correct it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """One layer.

    Attributes:
        placement: `pre` normalises what enters a sublayer, x + f(norm(x)); `post` what leaves
            its residual sum, norm(x + f(x)); `pre_residual` takes the residual from the
            normed stream, norm(x) + f(norm(x)); `inner_post` normalises what leaves a sublayer,
            x + norm(f(x)); `sandwich` what enters and what leaves it, x + norm(f(norm(x))), with
            a norm each. `parallel` feeds both sublayers the same,
            x + mixer(norm(x)) + mlp(norm(x)) (Wang and Komatsuzaki 2021, "GPT-J");
            `parallel_norms` gives each a norm of its own.
        mixer: what tokens get from those before them by.
        feed_forward: of each token by itself; None without one.
        cross_attention: to a source, between the mixer and the mlp; None without one.
        attention_norm: False where the self-attention alone has none.
        residual_scale: multiplies what each sublayer adds to the stream.
    """

    mixer: Mixer
    feed_forward: FeedForwardConfig | MixtureConfig | None
    norm: NormConfig
    placement: Placement = "pre"
    cross_attention: AttentionConfig | None = None
    attention_norm: bool = True
    residual_scale: float = 1.0

    @property
    def attention(self) -> AttentionConfig:
        """The mixer, if it is attention.

        Raises:
            ConfigError: it is another.
        """
        if not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"mixer: expected attention, got {type(self.mixer).__name__}. "
                "This has no place for it."
            )
        return self.mixer

    @property
    def dense(self) -> FeedForwardConfig:
        """The feed-forward layer, if there is one and it is no mixture of experts.

        Raises:
            ConfigError: there is none, or a mixture.
        """
        if not isinstance(self.feed_forward, FeedForwardConfig):
            got = "none" if self.feed_forward is None else "a mixture of experts"
            raise ConfigError(
                f"feed_forward: expected one for all tokens, got {got}. "
                "This family's format has no place for it."
            )
        return self.feed_forward

    @property
    def parallel(self) -> bool:
        """Whether both sublayers read what enters the layer."""
        return self.placement in ("parallel", "parallel_norms")

    def __post_init__(self) -> None:
        if self.parallel and (self.cross_attention is not None or self.feed_forward is None):
            raise ConfigError(
                "block: expected an mlp and no cross-attention where attention and mlp are "
                "parallel, got others. Choose another placement."
            )
        cross = self.cross_attention
        if cross is not None and not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(
                f"block: expected attention beside cross-attention, got "
                f"{type(self.mixer).__name__}. Leave one of them out."
            )
        if cross is not None and cross != _of_a_source(cross):
            raise ConfigError(
                "cross_attention: expected queries, keys and values as they are, got rotary "
                "positions, a norm, a bound, sinks or a gate. Leave them out."
            )


def _of_a_source(cross: AttentionConfig) -> AttentionConfig:
    """Attention without what only self-attention has."""
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

"""A transformer as data.

`TransformerConfig` says everything about what a decoder computes. A family (Llama, GPT-2, ...)
is a function from its published config to this one; nothing else in Ortolan knows a
family's name. New behaviour is a new value of a field.
"""

import math
from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.errors import ConfigError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
"""`gelu` is exact, `gelu_tanh` its approximation (Hendrycks and Gimpel 2016)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023, "Extending Context Window")."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNTKScaling:
    """A larger base when the context is longer than `original_context`.

    The published rule takes the length of the text so far, and so changes the angles of keys
    that a cache already holds. Here the length is the config's `context_length`, once and for
    all: a cached step then equals an uncached one.
    """

    factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Interpolation by wavelength, and warmer attention (Peng et al. 2023, "YaRN").

    Attributes:
        attention_factor: multiplies cosines and sines.
        truncate: round the bounds of the ramp to whole channels.
    """

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


RotaryScaling = LinearScaling | DynamicNTKScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPositions:
    """Order is known from the causal mask alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """A trained table `(context, hidden)` added to the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinusoidalPositions:
    """A fixed table added to the embedding (Vaswani et al. 2017, section 3.5).

    Attributes:
        layout: `interleaved` alternates sine and cosine, as the paper prints it; `halves` has
            all sines before all cosines, as Marian does.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryPositions:
    """Queries and keys rotated by their position (Su et al. 2021, "RoFormer"), half-split.

    Attributes:
        dim: channels of each head that are rotated; the first ones.
        theta: the base of the wavelengths.
        scaling: how the wavelengths are stretched for long contexts.
    """

    dim: int
    theta: float = 10_000.0
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        if not self.theta > 1:
            raise ConfigError(
                f"positions: expected theta above 1, got {self.theta}. Check rope_theta."
            )
        if self.scaling is not None and not self.scaling.factor > 0:
            raise ConfigError(
                f"positions: expected a positive factor, got {self.scaling.factor}. "
                "Check rope_scaling."
            )
        match self.scaling:
            case DynamicNTKScaling() if self.dim <= 2:
                raise ConfigError(
                    f"positions: expected more than 2 rotated channels, got {self.dim}. "
                    "The dynamic scaling is not defined for them."
                )
            case Llama3Scaling(low_freq_factor=low, high_freq_factor=high) if not low < high:
                raise ConfigError(
                    f"positions: expected low_freq_factor below high_freq_factor, got {low} and "
                    f"{high}. Check rope_scaling."
                )
            case YarnScaling(beta_fast=fast, beta_slow=slow) if not (fast > 0 and slow > 0):
                raise ConfigError(
                    f"positions: expected positive beta_fast and beta_slow, got {fast} and "
                    f"{slow}. Check rope_scaling."
                )
            case YarnScaling(attention_factor=factor) if not 0 < factor < math.inf:
                raise ConfigError(
                    f"positions: expected a positive attention_factor, got {factor}. "
                    "Check attention_factor, mscale and mscale_all_dim in rope_scaling."
                )


Positions = NoPositions | LearnedPositions | SinusoidalPositions | RotaryPositions


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019)."""

    kind: Literal["layer", "rms"]
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Causal self-attention; `num_kv_heads` makes it multi-head, grouped or multi-query.

    Attributes:
        scale: factor on the scores; usually `head_dim ** -0.5`.
        sliding_window: how many tokens one sees, itself included; None for all before it.
        softcap: scores become `softcap * tanh(scores / softcap)`; None for plain scores.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    out_bias: bool = False
    sliding_window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim) < 1:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardConfig:
    """`mlp`: down(act(up(x))). `gated`: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

    kind: Literal["mlp", "gated"]
    intermediate_size: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """One layer.

    Attributes:
        placement: `pre` normalises what enters a sublayer, `post` what leaves its residual sum.
    """

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: NormConfig
    placement: Literal["pre", "post"] = "pre"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder-only language model.

    Attributes:
        model_type: the family whose checkpoint format this model is saved in. It names a
            format and never decides what is computed.
        context_length: tokens that fit; rows of every position table.
        final_norm: the norm before the head; None where the blocks already end in one.
        tied_head: the head is the embedding's table.
        embedding_scale: multiplies the token embeddings, not the position embeddings.
        bos_token_id: the token that starts a text, if there is one.
        eos_token_ids: the tokens that end one.
        pad_token_id: the token that fills batches; never decides what is computed.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    context_length: int
    positions: Positions
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig | None
    tied_head: bool
    embedding_scale: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ConfigError(
                "blocks: expected at least one layer, got none. Check num_hidden_layers."
            )
        if isinstance(self.positions, RotaryPositions):
            _check_rotary(self.positions, self.blocks)


def _check_rotary(positions: RotaryPositions, blocks: tuple[BlockConfig, ...]) -> None:
    """Raise ConfigError unless `positions.dim` channels exist, in pairs, in every head."""
    narrowest = min(block.attention.head_dim for block in blocks)
    if positions.dim % 2 or not 0 < positions.dim <= narrowest:
        raise ConfigError(
            f"positions: expected an even number of rotated channels up to {narrowest} "
            f"(the head's width), got {positions.dim}. Check partial_rotary_factor and head_dim."
        )

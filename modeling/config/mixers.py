"""Mixers other than attention, and the state that a layer carries.

These mixers have a state of fixed size that every token replaces, so it can be neither padded nor
rewound.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.errors import ConfigError

CAPACITY: Final = "capacity"
"""The axis along which a state grows with each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """A tensor that a layer carries from step to step.

    Attributes:
        name: unique in its layer.
        shape: for one sequence; `CAPACITY` is the axis along which it grows.
        update: `append` if it grows with each token, `replace` if each token replaces it.
    """

    name: str
    shape: tuple[int | Literal["capacity"], ...]
    update: Literal["append", "replace"] = "replace"

    def sizes(self, capacity: int) -> tuple[int, ...]:
        """The shape for `capacity` tokens."""
        return tuple(capacity if size == CAPACITY else size for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A convolution over a few tokens between two gates (Liquid AI 2025, "LFM2").

    `out(after * convolve(before * x))`, where `after`, `before` and `x` are projections of the
    stream.

    Attributes:
        channels: of each projection.
        taps: tokens that the convolution spans, including the current one.
        bias: of both matrices and of the convolution.
    """

    channels: int
    taps: int
    bias: bool = False

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution."""
        return (_window(self.channels, self.taps),)

    def __post_init__(self) -> None:
        _check("short_conv", self.channels, taps=self.taps)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig:
    """Linear attention by the delta rule, with a decay (Yang et al. 2024, "Gated DeltaNet").

    Attributes:
        num_heads: heads of values, each with its own memory.
        num_key_heads: heads of queries and keys; consecutive heads of values share one.
        key_dim: channels of a query or key.
        value_dim: channels of a value.
        taps: of the convolution of queries, keys and values.
        norm: of the output of each head, before its gate.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm: NormConfig

    @property
    def mixed(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory of every head."""
        memory = (self.num_heads, self.key_dim, self.value_dim)
        return _window(self.mixed, self.taps), LayerState(name="recurrent", shape=memory)

    def __post_init__(self) -> None:
        sizes = self.num_heads, self.num_key_heads, self.key_dim, self.value_dim
        _check("gated_delta", *sizes, taps=self.taps)
        _check_shared("gated_delta", self.num_heads, self.num_key_heads, "key heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceConfig:
    """A selective state space, whose memory decays by steps that depend on the tokens.

    With a `step_rank` it is Mamba 1 (Gu and Dao 2023): steps, keys and queries are projected from
    the output of the convolution, and every channel is a head. Without, it is Mamba 2 (Dao and Gu
    2024): they are projected from the stream, and a head has one step.

    Attributes:
        num_heads: heads with their own memory; in Mamba 1, the channels.
        head_dim: channels of a head; 1 in Mamba 1.
        state_dim: numbers in the memory of a channel.
        taps: of the convolution.
        groups: groups of heads that share keys and queries.
        step_rank: width that steps are projected from; None for Mamba 2.
        conv_bias: of the convolution.
        bias: of the first and the last matrix.
        norm: Mamba 2: of the output of each group, after its gate.
        inner_norm: Mamba 1: of the inputs of steps, keys and queries.
        steps: Mamba 2: bounds of the steps.
        activation: of the output of the convolution; gates have SiLU.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    taps: int
    groups: int = 1
    step_rank: int | None = None
    conv_bias: bool = True
    bias: bool = False
    norm: NormConfig | None = None
    inner_norm: NormConfig | None = None
    steps: tuple[float, float] | None = None
    activation: Activation = "silu"

    @property
    def channels(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Channels of the convolution, including those of keys and queries in Mamba 2."""
        shared = 0 if self.step_rank else 2 * self.groups * self.state_dim
        return self.channels + shared

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory of each head."""
        memory = (self.num_heads, self.state_dim, self.head_dim)
        return _window(self.mixed, self.taps), LayerState(name="recurrent", shape=memory)

    def __post_init__(self) -> None:
        sizes = self.num_heads, self.head_dim, self.state_dim, self.groups
        rank = 1 if self.step_rank is None else self.step_rank
        _check("state_space", *sizes, rank, taps=self.taps)
        _check_shared("state_space", self.num_heads, self.groups, "groups")
        first = self.step_rank is not None
        if first and (self.head_dim, self.groups, self.norm, self.steps) != (1, 1, None, None):
            raise ConfigError(
                "state_space: with a step_rank, head_dim and groups must be 1, and norm and steps "
                "absent. Correct the config."
            )
        if not first and self.inner_norm is not None:
            raise ConfigError("state_space: inner_norm needs a step_rank. Leave it out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRecurrenceConfig:
    """A gated linear recurrent unit, channel by channel (De et al. 2024, "Griffin": RG-LRU).

    Attributes:
        channels: of the recurrence.
        num_heads: blocks of channels; a gate reads its own block.
        taps: of the convolution before it.
        activation: of the branch that gates the output.
    """

    channels: int
    num_heads: int
    taps: int
    activation: Activation = "gelu_tanh"

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory: one number per channel."""
        memory = LayerState(name="recurrent", shape=(self.channels, 1, 1))
        return _window(self.channels, self.taps), memory

    def __post_init__(self) -> None:
        _check("linear_recurrence", self.channels, self.num_heads, taps=self.taps)
        _check_shared("linear_recurrence", self.channels, self.num_heads, "heads")


def _window(channels: int, taps: int) -> LayerState:
    """The inputs of a convolution that the next token needs."""
    return LayerState(name="conv", shape=(channels, taps - 1))


def _check(mixer: str, *sizes: int, taps: int) -> None:
    """Raise ConfigError for a size below 1 or a convolution of one token."""
    if min(sizes) < 1 or taps < 2:
        raise ConfigError(
            f"{mixer}: sizes must be at least 1, and a convolution needs at least 2 taps (got "
            f"{min(sizes)} and {taps}). Correct it."
        )


def _check_shared(mixer: str, heads: int, shares: int, name: str) -> None:
    if heads % shares:
        raise ConfigError(
            f"{mixer}: {name} must share {heads} evenly (got {shares}). Correct one of them."
        )

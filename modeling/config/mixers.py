"""What may mix the tokens of a block in place of attention, and what a block carries.

A mixer that is no attention has a memory of fixed size, which every token replaces: its rows are
never padded, and cannot be rewound.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.errors import ConfigError

CAPACITY: Final = "capacity"
"""The axis along which a state grows by a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """A tensor that a layer carries from step to step.

    Attributes:
        name: in its layer.
        shape: of one text's; `CAPACITY` for the axis along which it grows.
        update: `append` where it grows by each token, `replace` where each token replaces it.
    """

    name: str
    shape: tuple[int | Literal["capacity"], ...]
    update: Literal["append", "replace"] = "replace"

    def sizes(self, capacity: int) -> tuple[int, ...]:
        """The shape where there is room for so many tokens."""
        return tuple(capacity if size == CAPACITY else size for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A convolution over a few tokens between two gates (Liquid AI 2025, "LFM2").

    `out(after * convolve(before * x))`, all three linear in the stream.

    Attributes:
        channels: of each of the three; as many as the stream has in published models.
        taps: tokens that the convolution spans, the token itself included.
        bias: of both products and of the convolution.
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
        num_heads: of values, each with a memory of its own.
        num_key_heads: of queries and keys; as many heads of values in turn share each.
        key_dim: channels of each query and key.
        value_dim: channels of each value.
        taps: of the convolution that queries, keys and values pass.
        norm: of what leaves each head, before its gate.
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
        """The last inputs of the convolution, and the memory of each head."""
        memory = (self.num_heads, self.key_dim, self.value_dim)
        return _window(self.mixed, self.taps), LayerState(name="recurrent", shape=memory)

    def __post_init__(self) -> None:
        sizes = self.num_heads, self.num_key_heads, self.key_dim, self.value_dim
        _check("gated_delta", *sizes, taps=self.taps)
        _check_shared("gated_delta", self.num_heads, self.num_key_heads, "key heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceConfig:
    """A selective state space: a memory that decays by steps that the tokens choose.

    With a `step_rank` it is the first Mamba (Gu and Dao 2023): steps, keys and queries are made of
    what leaves the convolution, and every channel is a head. Without, it is Mamba 2 (Dao and Gu
    2024), where they are made of the stream and a head has one step.

    Attributes:
        num_heads: with a memory each; the first Mamba's channels.
        head_dim: channels of each; 1 in the first Mamba.
        state_dim: numbers that are remembered of each channel.
        taps: of the convolution.
        groups: of heads that share keys and queries.
        step_rank: numbers that the steps are made of; None for Mamba 2.
        conv_bias: of the convolution.
        bias: of the first and of the last product.
        norm: of Mamba 2: of what leaves each group, after its gate.
        inner_norm: of the first Mamba: of the numbers of the steps, keys and queries; None without.
        steps: bounds of the steps of Mamba 2; None for none.
        activation: of what leaves the convolution; gates have SiLU.
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
        """Of all heads."""
        return self.num_heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Channels of the convolution; those of keys and queries among them in Mamba 2."""
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
                "state_space: expected channels that are a head each, of one group, without a norm "
                "or bounds of their steps where these have a rank, got others. Correct it."
            )
        if not first and self.inner_norm is not None:
            raise ConfigError(
                "state_space: expected no inner_norm where steps have no rank, got one. "
                "Leave it out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRecurrenceConfig:
    """A gated linear recurrent unit, channel by channel (De et al. 2024, "Griffin": RG-LRU).

    Attributes:
        channels: of the recurrence.
        num_heads: blocks of channels, of each of which the gates are made.
        taps: of the convolution before it.
        activation: of the branch that gates what leaves it.
    """

    channels: int
    num_heads: int
    taps: int
    activation: Activation = "gelu_tanh"

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory: a number a channel."""
        memory = LayerState(name="recurrent", shape=(self.channels, 1, 1))
        return _window(self.channels, self.taps), memory

    def __post_init__(self) -> None:
        _check("linear_recurrence", self.channels, self.num_heads, taps=self.taps)
        _check_shared("linear_recurrence", self.channels, self.num_heads, "heads")


def _window(channels: int, taps: int) -> LayerState:
    """The inputs of a convolution that the next token needs."""
    return LayerState(name="conv", shape=(channels, taps - 1))


def _check(what: str, *sizes: int, taps: int) -> None:
    """Raise ConfigError where there is nothing of something, or a convolution of one token."""
    if min(sizes) < 1 or taps < 2:
        raise ConfigError(
            f"{what}: expected sizes of at least 1, and a convolution of at least 2 taps, got "
            f"{min(sizes)} and {taps}. Correct it."
        )


def _check_shared(what: str, heads: int, shares: int, of: str) -> None:
    if heads % shares:
        raise ConfigError(
            f"{what}: expected {of} that share {heads} evenly, got {shares}. Correct one of them."
        )

"""Mixers other than attention, and the state that a layer carries.

These mixers have a state of fixed size that every token replaces, so it can be neither padded nor
rewound. `taps` is the number of tokens that a convolution spans, including the current one.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ortolan.modeling.config.base import Bound, Config, Size
from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.errors import ConfigError

CAPACITY: Final = "capacity"
"""The axis along which a state grows with each token."""

Taps = Annotated[int, Bound("be at least 2", lambda value: value >= 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """A tensor that a layer carries from step to step; each token adds to it or replaces it."""

    name: str  # unique in its layer
    shape: tuple[int | Literal["capacity"], ...]  # for one sequence
    update: Literal["append", "replace"] = "replace"

    def sizes(self, capacity: int) -> tuple[int, ...]:
        """The shape for `capacity` tokens."""
        return tuple(capacity if size == CAPACITY else size for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig(Config):
    """A convolution over a few tokens between two gates (Liquid AI 2025, "LFM2").

    `out(after * convolve(before * x))`, where `after`, `before` and `x` are projections of the
    stream. `bias` is that of both matrices and of the convolution.
    """

    channels: Size
    taps: Taps
    bias: bool = False

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution."""
        return (_window(self.channels, self.taps),)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig(Config):
    """Linear attention by the delta rule, with a decay (Yang et al. 2024, "Gated DeltaNet")."""

    num_heads: Size  # heads of values, each with its own memory
    num_key_heads: Size  # heads of queries and keys; consecutive heads of values share one
    key_dim: Size
    value_dim: Size
    taps: Taps
    norm: NormConfig  # of the output of each head, before its gate

    @property
    def mixed(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory of every head."""
        memory = (self.num_heads, self.key_dim, self.value_dim)
        return _window(self.mixed, self.taps), LayerState(name="recurrent", shape=memory)

    def _check(self) -> None:
        _check_shared("gated_delta", self.num_heads, self.num_key_heads, "key heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceConfig(Config):
    """A selective state space, whose memory decays by steps that depend on the tokens.

    With a `step_rank` it is Mamba 1 (Gu and Dao 2023): steps, keys and queries are projected from
    the output of the convolution, and every channel is a head. Without, it is Mamba 2 (Dao and Gu
    2024): they are projected from the stream, and a head has one step.
    """

    num_heads: Size
    head_dim: Size
    state_dim: Size  # numbers in the memory of a channel
    taps: Taps
    groups: Size = 1  # groups of heads that share keys and queries
    step_rank: Size | None = None  # width that steps are projected from
    conv_bias: bool = True
    bias: bool = False  # of the first and the last matrix
    norm: NormConfig | None = None  # Mamba 2: of the output of each group, after its gate
    inner_norm: NormConfig | None = None  # Mamba 1: of the inputs of steps, keys and queries
    steps: tuple[float, float] | None = None  # Mamba 2: bounds of the steps
    activation: Activation = "silu"  # of the output of the convolution; gates have SiLU

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

    def _check(self) -> None:
        _check_shared("state_space", self.num_heads, self.groups, "groups")
        of_mamba_2 = self.head_dim, self.groups, self.norm, self.steps
        if self.step_rank is not None and of_mamba_2 != (1, 1, None, None):
            raise ConfigError(
                "state_space: with a step_rank, head_dim and groups must be 1, and norm and steps "
                "absent. Correct the config."
            )
        if self.step_rank is None and self.inner_norm is not None:
            raise ConfigError("state_space: inner_norm needs a step_rank. Leave it out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRecurrenceConfig(Config):
    """A gated linear recurrent unit, channel by channel (De et al. 2024, "Griffin": RG-LRU).

    Each of the `num_heads` blocks of channels has its own gates. `activation` is that of the branch
    that gates the output.
    """

    channels: Size
    num_heads: Size
    taps: Taps
    activation: Activation = "gelu_tanh"

    @property
    def states(self) -> tuple[LayerState, ...]:
        """The last inputs of the convolution, and the memory: one number per channel."""
        memory = LayerState(name="recurrent", shape=(self.channels, 1, 1))
        return _window(self.channels, self.taps), memory

    def _check(self) -> None:
        _check_shared("linear_recurrence", self.channels, self.num_heads, "heads")


def _window(channels: int, taps: int) -> LayerState:
    """The inputs of a convolution that the next token needs."""
    return LayerState(name="conv", shape=(channels, taps - 1))


def _check_shared(mixer: str, heads: int, shares: int, name: str) -> None:
    if heads % shares:
        raise ConfigError(
            f"{mixer}: {name} must share {heads} evenly (got {shares}). Correct one of them."
        )

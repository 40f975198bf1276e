"""Positions, as data: every kind that a stack of blocks may have."""

import math
from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023, "Extending Context Window")."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNTKScaling:
    """A larger base when the context is longer than `original_context`.

    The published rule takes the length of the text so far, and so changes the angles of keys
    that a cache already holds. Here the length is the config's `context_length`, once and for
    all: a cached step then equals an uncached one (docs/adr/0032).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """Every wavelength times a factor of its own (Ding et al. 2024, "LongRoPE").

    The published rule has two lists and takes the one for the length of the text so far, which
    changes the angles of keys that a cache already holds. Here the config's `context_length`
    chooses, once and for all: with a context of up to `original_context`, which is the default, all
    texts have the short ones, as published (docs/adr/0032).

    Attributes:
        short_factors: of each pair of channels, for contexts up to `original_context`.
        long_factors: for longer ones.
        attention_factor: multiplies cosines and sines.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int
    attention_factor: float


RotaryScaling = LinearScaling | DynamicNTKScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPositions:
    """Order is known from the causal mask alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """A trained table `(offset + context, hidden)` added to the embedding.

    Attributes:
        offset: rows before that of the first position, which no token reads. Some published
            tables have them: two in BART, one more than the padding id in RoBERTa.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ConfigError(
                f"positions: expected an offset of at least 0, got {self.offset}. Correct it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinusoidalPositions:
    """A fixed table added to the embedding (Vaswani et al. 2017, section 3.5).

    Attributes:
        layout: `interleaved` alternates sine and cosine, as the paper prints it; `halves` has
            all sines before all cosines, as Marian does.
        offset: the row of the first token.
        endpoint: the longest wavelength is 10000 times the shortest, as in tensor2tensor;
            else that of one more pair of channels would be.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    offset: int = 0
    endpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryPositions:
    """Queries and keys rotated by their position (Su et al. 2021, "RoFormer").

    Attributes:
        dim: channels of each head that are rotated; the first ones.
        theta: the base of the wavelengths.
        scaling: how the wavelengths are stretched for long contexts.
        interleaved: neighbouring channels are turned together, as in the paper; else those half
            of `dim` apart.
        backward: turned the other way.
    """

    dim: int
    theta: float = 10_000.0
    scaling: RotaryScaling | None = None
    interleaved: bool = False
    backward: bool = False

    @property
    def switches_after(self) -> int | None:
        """Tokens of the longest text before the published angles change with the length.

        None where they are the same for texts of all lengths.
        """
        match self.scaling:
            case LongRopeScaling(short_factors=short, long_factors=long) if short == long:
                return None
            case DynamicNTKScaling(original_context=last) | LongRopeScaling(original_context=last):
                return last
            case _:
                return None

    def __post_init__(self) -> None:
        if not self.theta > 1:
            raise ConfigError(
                f"positions: expected theta above 1, got {self.theta}. Check rope_theta."
            )
        match self.scaling:
            case LongRopeScaling(short_factors=short, long_factors=long):
                if {len(short), len(long)} != {self.dim // 2} or not min(*short, *long) > 0:
                    raise ConfigError(
                        f"positions: expected two lists of {self.dim // 2} positive factors, one "
                        f"for each pair of rotated channels, got {len(short)} and {len(long)} of "
                        f"at least {min(*short, *long, math.inf)}. Check rope_scaling."
                    )
            case None:
                pass
            case scaling if not scaling.factor > 0:
                raise ConfigError(
                    f"positions: expected a positive factor, got {scaling.factor}. "
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
            case (
                YarnScaling(attention_factor=factor) | LongRopeScaling(attention_factor=factor)
            ) if not 0 < factor < math.inf:
                raise ConfigError(
                    f"positions: expected a positive attention_factor, got {factor}. "
                    "Check attention_factor, mscale and mscale_all_dim in rope_scaling."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenatedPositions:
    """A table joined to the embedding instead of added, which keeps the two apart.

    Attributes:
        dim: channels of the stream that hold the position; the token's embedding has the rest.
        table: the kind of its rows.
    """

    dim: int
    table: LearnedPositions | SinusoidalPositions

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ConfigError(
                f"positions: expected at least one channel of position, got {self.dim}. Correct it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBiasPositions:
    """A trained number per head and distance, added to the scores (Raffel et al. 2020, "T5").

    Distances share buckets: near ones have one each, far ones ever wider ones, and those from
    `max_distance` on the last.

    Attributes:
        buckets: rows of the table; a bidirectional stack has half of them for each side.
        max_distance: where the last bucket begins.
        each_layer: every layer has a table `(buckets, heads)`; else they share one.
        absolute: a table of positions is added to the embedding as well.
    """

    buckets: int = 32
    max_distance: int = 128
    each_layer: bool = False
    absolute: LearnedPositions | None = None

    def __post_init__(self) -> None:
        # A quarter of them is one row for the distances of one side that have their own.
        if self.buckets < 4 or self.buckets % 2 or self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"positions: expected an even number of at least 4 buckets, and a max_distance "
                f"above half of it, got {self.buckets} and {self.max_distance}. Check "
                "relative_attention_num_buckets and relative_attention_max_distance."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeKeyPositions:
    """A trained vector per distance, added to the keys (Shaw et al. 2018, equation 4).

    Every layer has its own table `(2 * max_distance + 1, head_dim)`, which its heads share.

    Attributes:
        max_distance: distances beyond it count as it; `k` in the paper.
    """

    max_distance: int

    def __post_init__(self) -> None:
        if self.max_distance < 1:
            raise ConfigError(
                f"positions: expected a max_distance of at least 1, got {self.max_distance}. "
                "Correct it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlibiPositions:
    """Scores fall linearly with distance, each head at its rate (Press et al. 2022, "ALiBi").

    A bidirectional stack takes the distance without its sign.

    Attributes:
        scale: multiplies what is added to the scores.
        rounded: the scores rise with the position of the key instead, and rates, positions and
            their products have the precision of bfloat16, as in the first Falcons.
    """

    scale: float = 1.0
    rounded: bool = False


TablePositions = LearnedPositions | SinusoidalPositions
"""Kinds that are rows of a table, added or joined to the embedding."""

RelativePositions = RelativeBiasPositions | RelativeKeyPositions | AlibiPositions
"""Kinds that change the scores by distance, and so reach texts of any length."""

Positions = (
    NoPositions | TablePositions | ConcatenatedPositions | RotaryPositions | RelativePositions
)

"""The positions of a stack, as data."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ortolan.modeling.config.base import Bound, Config, Count, Positive, Size
from ortolan.modeling.config.head import Activation
from ortolan.modeling.errors import ConfigError

AXES = 3
"""Axes of the positions in texts with images: time, row and column."""

ROW, COLUMN = 1, 2
"""Axes of the positions of patches."""


Factors = Annotated[
    tuple[float, ...], Bound("hold positive factors", lambda fs: min(fs, default=1) > 0)
]


class Scaling(Config):
    """Base of the ways to stretch rotary positions for long contexts."""

    __slots__ = ()

    ADVICE: ClassVar[str] = "Check rope_scaling."


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling(Scaling):
    """Positions divided by `factor` (Chen et al. 2023, "Extending Context Window")."""

    factor: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNTKScaling(Scaling):
    """A larger base when the context is longer than `original_context`.

    The published rule depends on the current length, and so changes the angles of keys that are
    already cached. Here it depends on the config's `context_length`, so that a cached step equals
    an uncached one (docs/adr/0032).
    """

    factor: Positive
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling(Scaling):
    """Low frequencies divided by `factor`, high ones unchanged, a ramp between (Llama 3.1)."""

    factor: Positive
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def _check(self) -> None:
        if not self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                "positions: low_freq_factor must be below high_freq_factor (got "
                f"{self.low_freq_factor} and {self.high_freq_factor}). Check rope_scaling."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling(Scaling):
    """Interpolation by wavelength, and warmer attention (Peng et al. 2023, "YaRN")."""

    factor: Positive
    original_context: int
    attention_factor: Positive  # of cosines and sines
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = True  # the bounds of the ramp are whole channels


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling(Scaling):
    """A factor for each pair of channels (Ding et al. 2024, "LongRoPE").

    The published rule switches between two lists by the current length, and so changes the angles
    of keys that are already cached. Here the config's `context_length` chooses: up to
    `original_context`, the default, all sequences use the short factors, as published
    (docs/adr/0032).
    """

    short_factors: Factors
    long_factors: Factors
    original_context: int
    attention_factor: Positive  # of cosines and sines


RotaryScaling = LinearScaling | DynamicNTKScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPositions:
    """No positions: the causal mask alone tells the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareTable:
    """A published table of the patches of a square image, for images of other sizes as well."""

    side: int
    antialiased: bool  # places are averaged where an image has fewer patches


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions(Config):
    """A trained table `(offset + context + spare, hidden)` added to the embedding.

    Attributes:
        offset: rows before the first position. Some published tables have them: two in BART, one
            more than the padding id in RoBERTa.
        padding: id that an encoder does not count, wherever it stands, so that it has the row
            before the first position, which is that of its id.
        spare: rows after the last position of the context.
        published: table of the checkpoint that is interpolated to the patches of the image.
    """

    offset: Count = 0
    padding: int | None = None
    spare: Count = 0
    published: SquareTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinusoidalPositions:
    """A fixed table added to the embedding, all sines before all cosines (Vaswani et al. 2017).

    Attributes:
        padding: id that an encoder does not count, and that has no vector of a position.
        endpoint: the last pair of channels has 10000 times the shortest wavelength, as in
            tensor2tensor; else the pair after it would.
    """

    offset: int = 0  # the row of the first token
    padding: int | None = None
    endpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryPositions(Config):
    """Queries and keys rotated by their position (Su et al. 2021, "RoFormer").

    Attributes:
        interleaved: neighbouring channels are rotated together, as in the paper; else channels
            `dim / 2` apart.
        axes: axis whose position rotates each pair of channels: 0 time, 1 row, 2 column (Wang et
            al. 2024, "Qwen2-VL"). The positions of a text are the same on all axes. Empty if
            tokens have one position.
        centers: positions are the centers of the patches of an image of one size, from -1 at its
            first edge to 1 at its last one, which is a whole turn of the shortest wavelength
            (Siméoni et al. 2025, "DINOv3"); else whole numbers.
    """

    ADVICE: ClassVar[str] = "Check rope_theta."

    dim: int  # channels of each head that are rotated, from the first on
    theta: Annotated[float, Bound("be above 1", lambda value: value > 1)] = 10_000.0
    scaling: RotaryScaling | None = None
    interleaved: bool = False
    backward: bool = False  # rotated the other way
    axes: tuple[int, ...] = ()
    axial: bool = False  # each axis has all wavelengths, instead of a share of them
    centers: bool = False

    @property
    def reads_axes(self) -> bool:
        """Whether each token comes with a position on each axis, as no table can know."""
        return bool(self.axes) and not self.centers

    @property
    def switches_after(self) -> int | None:
        """The length beyond which the published angles change; None if they never do."""
        match self.scaling:
            case LongRopeScaling(short_factors=short, long_factors=long) if short == long:
                return None
            case DynamicNTKScaling(original_context=last) | LongRopeScaling(original_context=last):
                return last
            case _:
                return None

    def _check(self) -> None:
        pairs = self.dim // 2
        match self.scaling:
            case DynamicNTKScaling() if pairs < 2:
                raise ConfigError(
                    "positions: dynamic scaling needs more than 2 rotated channels (got "
                    f"{self.dim}). Check head_dim."
                )
            case LongRopeScaling(short_factors=short, long_factors=long) if not (
                len(short) == len(long) == pairs
            ):
                raise ConfigError(
                    f"positions: needs two lists of {pairs} factors, one per pair of rotated "
                    f"channels (got {len(short)} and {len(long)}). Check rope_scaling."
                )
        if self.axes and (len(self.axes) != pairs or not {*self.axes} <= {*range(AXES)}):
            raise ConfigError(
                f"positions: axes must name one of {AXES} axes for each of {pairs} pairs of "
                f"channels (got {len(self.axes)}). Check mrope_section."
            )
        if (self.axial and (self.scaling is not None or not self.axes)) or (
            self.centers and not (self.axial and {*self.axes} == {ROW, COLUMN})
        ):
            raise ConfigError(
                "positions: axial needs axes and no scaling, and centers need axial rows and "
                "columns. Correct axes, axial or centers."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPositions(Config):
    """A trained table of `side` by `side` places, interpolated to the grid of an image.

    Interpolation is linear in rows and columns, so a weight for each row of the table and one for
    each column give the position of a patch. `antialiased` averages where the grid is smaller than
    the table, as PyTorch resizes images; `corners` places the corners of the grid at those of the
    table.
    """

    side: Size
    interpolation: Literal["antialiased", "corners"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBiasPositions(Config):
    """A trained number per head and distance, added to the scores (Raffel et al. 2020, "T5").

    Near distances have a bucket each, farther ones share ever wider buckets, and those from
    `max_distance` on share the last.
    """

    buckets: int = 32  # rows of the table; a bidirectional stack uses half of them for each side
    max_distance: int = 128
    each_layer: bool = False  # every layer has a table `(buckets, heads)`; else all share one
    absolute: LearnedPositions | None = None  # added to the embedding as well

    def _check(self) -> None:
        # A quarter of the buckets are for the near distances of one side.
        if self.buckets < 4 or self.buckets % 2 or self.max_distance <= self.buckets // 2:
            raise ConfigError(
                "positions: buckets must be an even number of at least 4, and max_distance above "
                f"half of it (got {self.buckets} and {self.max_distance}). Check "
                "relative_attention_num_buckets and relative_attention_max_distance."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlibiPositions:
    """Scores that fall linearly with distance, at a rate per head (Press et al. 2022, "ALiBi").

    A bidirectional stack ignores the sign of the distance. `rounded` biases rise with the position
    of the key instead, and rates, positions and their products are rounded to bfloat16, as in the
    first Falcon models.
    """

    scale: float = 1.0
    rounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalPositions(Config):
    """`act(conv(x))` added to the embedding `x`, by a convolution over time in groups of channels.

    Zeros before and after the sequence tell its ends (Mohamed et al. 2019, "Transformers with
    convolutional context for ASR").
    """

    kernel: Size
    groups: Size
    activation: Activation


TablePositions = LearnedPositions | SinusoidalPositions
"""Positions that are rows of a table."""

RelativePositions = RelativeBiasPositions | AlibiPositions
"""Positions that change the scores by distance, and so reach any length."""

Positions = (
    NoPositions
    | TablePositions
    | ConvolutionalPositions
    | GridPositions
    | RotaryPositions
    | RelativePositions
)


def added_table(positions: Positions) -> TablePositions | None:
    """The table whose rows are added to the embedding, if there is one."""
    match positions:
        case LearnedPositions() | SinusoidalPositions():
            return positions
        case RelativeBiasPositions(absolute=table):
            return table
        case _:
            return None

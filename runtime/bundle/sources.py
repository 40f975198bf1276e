"""Sources of encoders: texts, images and sounds, and how they become inputs of a graph."""

from typing import Annotated, Literal

from msgspec import Meta, field

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label, Prompt, Record, TokenId


class TextSource(Record, frozen=True, kw_only=True, tag_field="kind", tag="text"):
    """Texts as input of an encoder.

    Attributes:
        max_tokens: most tokens of a text, special tokens included.
        vocab_size: number of ids, if it differs from the manifest's `vocab_size`.
        prompts: prefixes that an embedding model was trained with, by name ("query", "passage").
        default_prompt: name of the prefix to use if the caller names none.
        pairs: whether the encoder classifies without regard to token types, so that two texts may
            come as one input even if the tokenizer tells them apart by types.
        types: number of token types; 1 if the graph reads none.
        padding: id that fills every text up to `max_tokens` and is read like other tokens; left out
            if texts keep their length.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    vocab_size: Annotated[int, Meta(ge=1, le=limits.MAX_VOCABULARY)] | None = None
    prompts: Annotated[dict[Label, Prompt], Meta(max_length=limits.MAX_PROMPTS)] = field(
        default_factory=dict
    )
    default_prompt: Label | None = None
    pairs: bool = False
    types: Annotated[int, Meta(ge=1, le=limits.MAX_TOKEN_TYPES)] = 1
    padding: TokenId | None = None

    @property
    def words(self) -> str:
        """Describe the input: `texts of at most 512 tokens`."""
        named = f"; prompts: {', '.join(self.prompts)}" if self.prompts else ""
        return f"texts of at most {self.max_tokens} tokens{named}"


Side = Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
# msgspec 0.22 crashes on a union of int and `tuple[int, int]`
Size = Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)]
"""Height and width in pixels."""

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Resampling filter, as Pillow names them."""


_COLOURS = ("grey", "grey with alpha", "RGB", "RGBA")
"""Names of images by number of channels."""


class Fit(Record, frozen=True, kw_only=True):
    """Steps that give an image the size of the encoder, in this order.

    Attributes:
        resize: new height and width; or one number for the shorter side, where the longer side
            keeps the proportions, rounded down. `None` leaves the size as it is.
        inside: keep the proportions, with the largest size that fits into `resize`.
        crop: height and width of the center to keep. Smaller images get a black border.
        pad: extend the normalized image with zeros on the right and at the bottom.
    """

    resize: Size | Side | None = None
    inside: bool = False
    crop: Size | None = None
    pad: bool = False


class ImageSource(Record, frozen=True, kw_only=True, tag_field="kind", tag="image"):
    """Images as input of an encoder, normalized to `(value * scale - mean) / std` per channel.

    Attributes:
        channels: 1 grey, 2 grey with alpha, 3 RGB, 4 RGBA.
        height: in pixels.
        width: in pixels.
        mean: one value per channel.
        std: one value per channel.
        scale: factor for pixel values, usually 1/255.
        resample: filter that resizes images of other sizes.
        rounding: whether resized values are rounded to whole numbers; left out if they are.
        fit: how images of other sizes get this size; left out if they are resized to it.
        background: color that shows through transparent pixels; left out if transparency is
            dropped, or has a channel.
    """

    channels: Annotated[int, Meta(ge=1, le=4)]
    height: Side
    width: Side
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Meta(gt=0)], ...]
    scale: Annotated[float, Meta(gt=0)]
    resample: Filter
    rounding: Literal["none"] | None = None
    fit: Fit | None = None
    background: Literal["white"] | None = None

    @property
    def steps(self) -> Fit:
        """How images get the size of the encoder."""
        return self.fit or Fit(resize=(self.height, self.width))

    @property
    def words(self) -> str:
        """Describe the input: `images, RGB, of 32 by 32 pixels`."""
        return f"images, {_COLOURS[self.channels - 1]}, of {self.height} by {self.width} pixels"


class MostPatches(Record, frozen=True, kw_only=True, tag_field="by", tag="most_patches"):
    """The largest size that has at most as many patches as the encoder reads.

    Sides are rounded up to whole patches, at a scale that bisection finds (Tschannen et al. 2025,
    "SigLIP 2").
    """


class WholeSquares(Record, frozen=True, kw_only=True, tag_field="by", tag="whole_squares"):
    """The sides of the image, rounded to whole squares of patches (Wang et al. 2024, "Qwen2-VL").

    An image with fewer or more pixels is scaled to these limits first.

    Attributes:
        least: fewest pixels.
        most: most pixels.
        enlarges_narrow: an image with a side of less than half a square is scaled to the fewest
            pixels, too.
    """

    least: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_PIXELS)]
    most: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_PIXELS)]
    enlarges_narrow: bool = False


class PositionTable(Record, frozen=True, kw_only=True):
    """A square table of positions that is interpolated to the patches of an image.

    The graph reads, for each patch, a weight for each row and for each column of the table.

    Attributes:
        side: rows and columns.
        interpolation: `antialiased` averages where an image has fewer patches than the table has
            places; `corners` places the corners of the image at those of the table.
    """

    side: Annotated[int, Meta(ge=1, le=limits.MAX_POSITION_SIDE)]
    interpolation: Literal["antialiased", "corners"]


class PatchSource(Record, frozen=True, kw_only=True, tag_field="kind", tag="patches"):
    """Images that keep their proportions as input of an encoder, each computed on its own.

    The graph reads flat patches: squares of `merge` by `merge` patches row by row, and the patches
    of each square row by row. Values are normalized as those of an `ImageSource`.

    Attributes:
        channels: 1 grey, 2 grey with alpha, 3 RGB, 4 RGBA.
        patch: side of a patch in pixels.
        patches: most patches of an image.
        merge: side of the squares of patches that become one vector.
        frames: times that a still image is repeated in a patch.
        layout: axes of a flat patch: rows, columns and channels, or channels, frames, rows and
            columns.
        size: the size to which an image is resized.
        table: positions of the patches; left out if the graph knows none.
        axes: whether the graph also reads a time, a row and a column of each patch.
        mean: one value per channel.
        std: one value per channel.
        scale: factor for pixel values, usually 1/255.
        resample: filter that resizes images.
        background: color that shows through transparent pixels; left out if transparency is
            dropped, or has a channel.
    """

    channels: Annotated[int, Meta(ge=1, le=4)]
    patch: Annotated[int, Meta(ge=1, le=limits.MAX_PATCH_SIZE)]
    patches: Annotated[int, Meta(ge=1, le=limits.MAX_PATCHES)]
    merge: Annotated[int, Meta(ge=1, le=limits.MAX_PATCH_REPEATS)]
    frames: Annotated[int, Meta(ge=1, le=limits.MAX_PATCH_REPEATS)]
    layout: Literal["channels_first", "channels_last"]
    size: MostPatches | WholeSquares
    table: PositionTable | None = None
    axes: bool = False
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Meta(gt=0)], ...]
    scale: Annotated[float, Meta(gt=0)]
    resample: Filter
    background: Literal["white"] | None = None

    @property
    def square(self) -> int:
        """Side of a square of patches in pixels."""
        return self.patch * self.merge

    @property
    def vectors(self) -> int:
        """Most vectors that the encoder makes of an image: one for each square."""
        return self.patches // self.merge**2

    @property
    def numbers(self) -> int:
        """Numbers of a flat patch."""
        return self.channels * self.frames * self.patch**2

    def length(self, height: int, width: int) -> int:
        """Vectors that the encoder makes of an image of this size."""
        return (height // self.square) * (width // self.square)

    @property
    def words(self) -> str:
        """Describe the input: `images, RGB, of up to 256 patches of 16 by 16 pixels`."""
        return (
            f"images, {_COLOURS[self.channels - 1]}, of up to {self.patches} patches of "
            f"{self.patch} by {self.patch} pixels"
        )


class _Sounds(Record, frozen=True, kw_only=True):
    """Sounds of any kind.

    Attributes:
        rate: samples per second.
    """

    rate: Annotated[int, Meta(ge=limits.MIN_AUDIO_RATE, le=limits.MAX_AUDIO_RATE)]

    @property
    def samples(self) -> int:
        """Most samples that the encoder reads at once."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Longest sound that the encoder reads at once."""
        return self.samples / self.rate

    @property
    def words(self) -> str:
        """Describe the input: `sounds of at most 30 seconds`."""
        return f"sounds of at most {self.seconds:g} seconds"


class AudioSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="audio"):
    """Sounds as input of an encoder, as log-mel spectrograms.

    Attributes:
        rate: samples per second.
        window: samples of a frame.
        hop: samples from one frame to the next.
        bins: mel frequencies per frame.
        frames: of a spectrogram.
        vectors: that the encoder makes of a spectrogram.
        highest: frequency in Hz at which the last filter ends.
    """

    window: Annotated[int, Meta(ge=2, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    bins: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_BINS)]
    frames: Annotated[int, Meta(ge=2, le=limits.MAX_CONTEXT)]
    vectors: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    highest: Annotated[float, Meta(gt=0)] = 8000.0

    @property
    def samples(self) -> int:
        """Samples of a spectrogram."""
        return self.frames * self.hop

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next."""
        return self.seconds / self.vectors


class WaveSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="wave"):
    """Sounds as input of an encoder, as waves of any length, each computed on its own.

    Attributes:
        rate: samples per second.
        window: samples that a vector is computed from.
        hop: samples from one vector to the next.
        vectors: most vectors that the encoder makes of a wave; longer ones are cut.
        normalized: whether the samples of a wave get a mean of 0 and a variance of 1.
    """

    window: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    vectors: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    normalized: bool

    @property
    def samples(self) -> int:
        """Most samples of a wave."""
        return self.vectors * self.hop

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next."""
        return self.hop / self.rate

    def length(self, samples: int) -> int:
        """Vectors that the encoder makes of a wave."""
        return max(0, (samples - self.window) // self.hop + 1)

    def reach(self, vectors: int) -> int:
        """Samples that the first vectors of a wave are computed from."""
        return self.window + (vectors - 1) * self.hop


class ChunkedSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="chunks"):
    """Sounds as input of an encoder, as log-mel spectrograms of whole chunks, each on its own.

    Frames after the end of a sound are zeros, and no vectors are made of them.

    Attributes:
        rate: samples per second.
        window: samples of a frame.
        hop: samples from one frame to the next.
        bins: mel frequencies per frame.
        frames: most frames of a spectrogram; longer sounds are cut.
        chunk: frames of a chunk, whose vectors depend on no other one before attention.
        stride: frames from one vector of a chunk to the next.
        shortest: samples up to which silence fills a sound.
        highest: frequency in Hz at which the last filter ends.
    """

    window: Annotated[int, Meta(ge=2, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    bins: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_BINS)]
    frames: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    chunk: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    stride: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    shortest: Annotated[int, Meta(ge=0, le=limits.MAX_AUDIO_RATE)] = 0
    highest: Annotated[float, Meta(gt=0)] = 8000.0

    @property
    def vectors(self) -> int:
        """Most vectors that the encoder makes of a spectrogram."""
        return self.length(self.frames)

    @property
    def samples(self) -> int:
        """Most samples of a spectrogram."""
        return self.frames * self.hop

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next, on average."""
        return self.seconds / self.vectors

    def length(self, frames: int) -> int:
        """Vectors that the encoder makes of the first frames."""
        whole, rest = divmod(frames, self.chunk)
        return whole * -(-self.chunk // self.stride) - (-rest // self.stride)

    def reach(self, vectors: int) -> int:
        """Samples that the first vectors are computed from, apart from a window."""
        whole, rest = divmod(vectors, -(-self.chunk // self.stride))
        return (whole * self.chunk + rest * self.stride) * self.hop


MediaSource = ImageSource | PatchSource | AudioSource | WaveSource | ChunkedSource
"""Images or sounds as input of an encoder."""

Source = TextSource | MediaSource
"""Input of an encoder."""

"""Sources that are images."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Record
from ortolan.runtime.bundle.source import (
    COLUMN_WEIGHTS,
    PATCHES,
    PIXELS,
    POSITIONS,
    ROW_WEIGHTS,
    AnySource,
    Feeds,
    Problems,
    Values,
    ramp,
)

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest
    from ortolan.runtime.bundle.parts import Features

Side = Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
# msgspec 0.22 crashes on a union of int and `tuple[int, int]`
Size = Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)]
"""Height and width in pixels."""

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Resampling filter, as Pillow names them."""


PIXELS_PER_TOKEN = 64
"""Patches of 8 by 8 pixels: what an image of a fixed size counts as in batches."""

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


class ImageSource(AnySource, Record, frozen=True, kw_only=True, tag_field="kind", tag="image"):
    """Images as input of an encoder, normalized to `(value * scale - mean) / std` per channel.

    Attributes:
        channels: 1 grey, 2 grey with alpha, 3 RGB, 4 RGBA.
        scale: factor for pixel values, usually 1/255.
        resample: filter that resizes images of other sizes.
        rounding: whether resized values are rounded to whole numbers; left out if they are.
        fit: how images of other sizes get this size; left out if they are resized to it.
        background: color that shows through transparent pixels; left out if transparency is
            dropped, or has a channel.
    """

    medium = "images"
    is_fixed = True

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
    def deferred(self) -> int:
        return max(1, self.height * self.width // PIXELS_PER_TOKEN)

    @property
    def words(self) -> str:
        return f"images, {_COLOURS[self.channels - 1]}, of {self.height} by {self.width} pixels"

    def inputs(self) -> Values:
        return {PIXELS: ("float32", ("batch", self.channels, self.height, self.width))}

    def sample(self, vocab_size: int) -> Feeds:
        return {PIXELS: ramp(1, self.channels, self.height, self.width)}

    def count(self, value: Any) -> int:
        return 1

    def problems(self, manifest: "Manifest") -> Problems:
        yield from _colour_problems(self)
        steps, size = self.steps, (self.height, self.width)
        exact = steps.resize if isinstance(steps.resize, tuple) and not steps.inside else None
        last = steps.crop or exact
        if last is not None and (not _is_inside(last, size) if steps.pad else last != size):
            yield f"steps of `fit` that give images of {size}", f"{last}"
        if steps.inside and not isinstance(steps.resize, tuple):
            yield "a height and a width to fit images inside", f"{steps.resize}"
        if not manifest.model_kind.has_decoder and manifest.tokenizer is not None:
            yield "no tokenizer for an encoder of images", manifest.tokenizer

    def fits(self, features: "Features") -> bool:
        tiles = features.tiles
        return features.positions == "sequence" and (tiles is None or tiles.grid.tile is None)


class MostPatches(Record, frozen=True, kw_only=True, tag_field="by", tag="most_patches"):
    """The largest size that has at most as many patches as the encoder reads.

    Sides are rounded up to whole patches, at a scale that bisection finds (Tschannen et al. 2025,
    "SigLIP 2").
    """


class WholeSquares(Record, frozen=True, kw_only=True, tag_field="by", tag="whole_squares"):
    """The sides of the image, rounded to whole squares of patches (Wang et al. 2024, "Qwen2-VL").

    An image with fewer or more pixels is scaled to these limits first.

    Attributes:
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
        interpolation: `antialiased` averages where an image has fewer patches than the table has
            places; `corners` places the corners of the image at those of the table.
    """

    side: Annotated[int, Meta(ge=1, le=limits.MAX_POSITION_SIDE)]
    interpolation: Literal["antialiased", "corners"]


class PatchSource(AnySource, Record, frozen=True, kw_only=True, tag_field="kind", tag="patches"):
    """Images that keep their proportions as input of an encoder, each computed on its own.

    The graph reads flat patches: squares of `merge` by `merge` patches row by row, and the patches
    of each square row by row. Fields that an `ImageSource` has too mean the same.

    Attributes:
        patch: side of a patch in pixels.
        patches: most patches of an image.
        merge: side of the squares of patches that become one vector.
        frames: times that a still image is repeated in a patch.
        layout: axes of a flat patch: rows, columns and channels, or channels, frames, rows and
            columns.
        size: the size to which an image is resized.
        table: positions of the patches; left out if the graph knows none.
        axes: whether the graph also reads a time, a row and a column of each patch.
    """

    medium = "images"
    is_alone = True

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

    def columns(self, pixels: NDArray[np.float32]) -> int:
        """Vectors in a row of an image that was read."""
        return int(pixels.shape[2]) // self.square

    @property
    def deferred(self) -> int:
        return self.patches

    @property
    def words(self) -> str:
        return (
            f"images, {_COLOURS[self.channels - 1]}, of up to {self.patches} patches of "
            f"{self.patch} by {self.patch} pixels"
        )

    def inputs(self) -> Values:
        square = "squares", self.merge**2
        values: Values = {PATCHES: ("float32", (*square, self.numbers))}
        if self.table is not None:
            weights = "float32", (*square, self.table.side)
            values |= {ROW_WEIGHTS: weights, COLUMN_WEIGHTS: weights}
        if self.axes:
            values[POSITIONS] = "int64", (*square, 3)
        return values

    def sample(self, vocab_size: int) -> Feeds:
        squares = min(2, self.vectors)
        feeds: Feeds = {PATCHES: ramp(squares, self.merge**2, self.numbers)}
        if self.table is not None:  # the mean of all positions
            side = self.table.side
            weights = np.full((squares, self.merge**2, side), 1 / side, np.float32)
            feeds |= {ROW_WEIGHTS: weights, COLUMN_WEIGHTS: weights}
        if self.axes:
            feeds[POSITIONS] = np.zeros((squares, self.merge**2, 3), np.int64)
        return feeds

    def count(self, value: Any) -> int:
        return self.length(*value.shape[1:])

    def problems(self, manifest: "Manifest") -> Problems:
        yield from _colour_problems(self)
        if manifest.model_kind.has_decoder or manifest.tokenizer is not None:
            yield "an encoder of patches without decoder and tokenizer", "one of another kind"
        if self.patches % self.merge**2 or self.vectors != manifest.context_length:
            yield (
                f"{manifest.context_length} squares of {self.merge} by {self.merge} patches",
                f"{self.patches} patches",
            )
        if self.frames > 1 and self.layout == "channels_last":
            yield "the layout 'channels_first' for several frames", self.layout
        pixels = self.patches * self.patch**2
        if pixels > limits.MAX_IMAGE_PIXELS:
            yield f"images of at most {limits.MAX_IMAGE_PIXELS} pixels", f"{pixels}"
        match self.size:
            case WholeSquares(least=least, most=most) if not least <= most <= pixels:
                yield f"sizes from `least` to `most` of at most {pixels}", f"{least}, {most}"

    def fits(self, features: "Features") -> bool:
        if features.tiles is None:
            return True
        side = features.tiles.grid.tile
        if side is None or not features.tiles.split:
            return side is not None
        return side % self.square == 0 and self.length(side, side) <= self.vectors


def _is_inside(size: tuple[int, ...], limit: tuple[int, ...]) -> bool:
    return all(side <= most for side, most in zip(size, limit, strict=True))


def _colour_problems(source: ImageSource | PatchSource) -> Problems:
    for name, values in (("mean", source.mean), ("std", source.std)):
        if len(values) != source.channels:
            yield f"{source.channels} values of `{name}`", f"{len(values)}"
    if source.background and source.channels not in (1, 3):
        yield "no background for images with alpha", source.background

"""Images as input of an encoder: how a picture of any size becomes pixels."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ortolan.runtime import limits

__all__ = ["Filter", "Fit", "ImageSource"]

Side = Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
# msgspec 0.22 crashes on a union of int and `tuple[int, int]`
Size = Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)]
"""Height and width in pixels."""

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Resampling filter, as Pillow names them."""


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class ImageSource(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="image",
):
    """Images as input of an encoder, normalized to `(value * scale - mean) / std` per channel.

    Attributes:
        channels: 1 grey, 2 grey with alpha, 3 RGB, 4 RGBA.
        height: in pixels.
        width: in pixels.
        mean: one value per channel.
        std: one value per channel.
        scale: factor for pixel values, usually 1/255.
        resample: filter that resizes images of other sizes.
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
    fit: Fit | msgspec.UnsetType = msgspec.UNSET
    background: Literal["white"] | msgspec.UnsetType = msgspec.UNSET

    @property
    def steps(self) -> Fit:
        """How images get the size of the encoder."""
        if isinstance(self.fit, msgspec.UnsetType):
            return Fit(resize=(self.height, self.width))
        return self.fit

    @property
    def words(self) -> str:
        """Describe the input: `images, RGB, of 32 by 32 pixels`."""
        colours = ("grey", "grey with alpha", "RGB", "RGBA")[self.channels - 1]
        return f"images, {colours}, of {self.height} by {self.width} pixels"

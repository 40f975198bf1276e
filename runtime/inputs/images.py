"""Images as an encoder takes them: floating-point pixels of one size.

The only module that imports Pillow, for the first image that has to be decoded, converted or
resized. An array of the right size needs none.

An image file is data from outside: only formats of photographs and screens are tried, and its
size is looked at before a pixel is decoded.
"""

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from PIL import Image as Pillow

__all__ = ["Image", "read_pixels"]

Image = str | os.PathLike[str] | bytes | NDArray[np.uint8]
"""A file, its contents, or pixels `(H, W)` or `(H, W, channels)`."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded. Others run programs (EPS) or are rare and seldom tested."""

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's names of channels: grey, grey and alpha, and so on."""

_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"})
"""Modes that convert to all of these; of 16 bits Pillow would cut off what is above 255."""


def read_pixels(image: Any, source: ImageSource) -> NDArray[np.float32]:
    """Read an image, bring it to the size and channels of `source`, and scale its values.

    A file is turned upright as it says (EXIF), and of several frames the first is taken.
    Transparency is dropped where the encoder has no channel for it. Files and arrays of another
    size are resized, without regard to their proportions.

    Args:
        image: a path, the contents of a file, or uint8 pixels `(H, W)` or `(H, W, channels)`.
        source: what the encoder takes.

    Returns:
        `(value * scale - mean) / std`, `(channels, height, width)`.

    Raises:
        InputError: not an image, damaged, too large, or not of 8 bits a channel.
        MissingExtraError: Pillow is needed and not installed.
    """
    if isinstance(image, np.ndarray):
        values_HWC = _check_array(image)
        size = (source.height, source.width, source.channels)
        if values_HWC.shape != size:
            values_HWC = _fit(_from_array(values_HWC), source)
    else:
        values_HWC = _fit(_decode(*_contents(image)), source)
    scaled_HWC = values_HWC.astype(np.float32) * np.float32(source.scale)
    mean, std = np.array(source.mean, np.float32), np.array(source.std, np.float32)
    return np.ascontiguousarray(((scaled_HWC - mean) / std).transpose(2, 0, 1))


def _check_array(image: NDArray[Any]) -> NDArray[np.uint8]:
    if image.dtype != np.uint8:
        raise InputError(
            f"image: expected an array of uint8, got {image.dtype}. "
            "Give the values of a picture from 0 to 255; they are scaled here."
        )
    if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[2] > 4):
        raise InputError(
            "image: expected an array (H, W) or (H, W, 1 to 4 channels), got the shape "
            f"{image.shape}. Give several images as a list."
        )
    _check_size(image.shape[1], image.shape[0], "image")
    return image[..., None] if image.ndim == 2 else image


def _check_size(width: int, height: int, name: str) -> None:
    if width * height > limits.MAX_IMAGE_PIXELS:
        raise InputError(
            f"{name}: expected at most {limits.MAX_IMAGE_PIXELS} pixels, got {width} by {height}. "
            "Make it smaller first."
        )


def _contents(image: Any) -> tuple[bytes, str]:
    """The bytes of an image file, and a name for errors."""
    if isinstance(image, bytes):
        data, name = image, "image"
    elif isinstance(image, str | os.PathLike):
        data, name = _read_file(Path(image)), f"{os.fspath(image)}"
    else:
        raise InputError(
            f"image: expected a path, the bytes of a file or an array, got {type(image).__name__}."
        )
    if len(data) > limits.MAX_IMAGE_BYTES:
        raise InputError(
            f"{name}: expected an image file of at most {limits.MAX_IMAGE_BYTES} bytes, got more. "
            "Make it smaller first."
        )
    return data, name


def _read_file(path: Path) -> bytes:
    try:
        # a pipe or a device could be read without end
        if not path.is_file():
            got = "something else" if path.exists() else "none"
            raise InputError(f"{path}: expected an image file, got {got}. Check the path.")
        with path.open("rb") as stream:
            return stream.read(limits.MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{str(path)[:300]!r}: expected a readable image file, got {reason}. Check the path."
        ) from error


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError(
            "images: expected the package pillow, got none. "
            'Run: pip install "ortolan[vision]", or give arrays of the right size'
        ) from error
    return PIL.Image


def _from_array(values_HWC: NDArray[np.uint8]) -> "Pillow.Image":
    channels = values_HWC.shape[2]
    flat = values_HWC[..., 0] if channels == 1 else values_HWC
    image: Pillow.Image = _pillow().fromarray(np.ascontiguousarray(flat), _MODES[channels])
    return image


def _decode(data: bytes, name: str) -> "Pillow.Image":
    module = _pillow()
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            # what decoders warn of is either refused here, or read as it stands
            warnings.simplefilter("ignore")
            opened = module.open(io.BytesIO(data), formats=FORMATS)
            _check_size(opened.width, opened.height, name)
            image: Pillow.Image = ImageOps.exif_transpose(opened)
    except InputError:
        raise
    except module.DecompressionBombError as error:
        raise InputError(
            f"{name}: expected at most {limits.MAX_IMAGE_PIXELS} pixels, got many more. "
            "Make it smaller first."
        ) from error
    except module.UnidentifiedImageError as error:
        raise InputError(
            f"{name}: expected an image ({', '.join(FORMATS)}), got something else. "
            "Check the file, or convert it to one of these."
        ) from error
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise InputError(
            f"{name}: expected a whole image, got a damaged one: {str(error)[:200]}. "
            "Copy the file again."
        ) from error
    return image


def _fit(image: "Pillow.Image", source: ImageSource) -> NDArray[np.uint8]:
    """Convert and resize, in the order in which transformers does it: `(H, W, channels)`."""
    if image.mode not in _EIGHT_BITS:
        raise InputError(
            f"image: expected colours or grey of 8 bits a channel, got the mode {image.mode!r}. "
            "Convert the image first."
        )
    mode = _MODES[source.channels]
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (source.width, source.height):
        resample = _pillow().Resampling[source.resample.upper()]
        image = image.resize((source.width, source.height), resample)
    values = np.asarray(image, np.uint8)
    return values[..., None] if values.ndim == 2 else values

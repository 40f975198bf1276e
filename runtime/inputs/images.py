"""Reads images as floating-point pixels of the size an encoder needs.

Pillow is imported here only, for the first image that must be decoded, converted or resized.

An image file is untrusted input: only common formats are tried, and its size is checked before any
pixel is decoded.
"""

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from PIL import Image as Pillow

__all__ = ["Image", "read_pixels"]

Image = str | os.PathLike[str] | bytes | NDArray[np.uint8]
"""A path, the bytes of a file, or pixels `(H, W)` or `(H, W, channels)`."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats to decode. Others run programs (EPS), or are rare and rarely tested."""

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by number of channels; L is gray, A is alpha."""

_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"})
"""Modes to convert from. Pillow would clip 16-bit values at 255."""


def read_pixels(image: Any, source: ImageSource) -> NDArray[np.float32]:
    """Read an image, convert and resize it for an encoder, and normalize its values.

    EXIF rotation is applied, the first frame is used, transparency is dropped unless the encoder
    has a channel for it, and resizing ignores the aspect ratio.

    Args:
        image: a path, the bytes of a file, or uint8 pixels `(H, W)` or `(H, W, channels)`.
        source: size, channels and normalization of the encoder.

    Returns:
        `(value * scale - mean) / std`, `(channels, height, width)`.

    Raises:
        InputError: not an image, damaged, too large, or without 8 bits per channel.
        MissingExtraError: Pillow is needed but not installed.
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
            f"image must be an array of uint8 (got {image.dtype}). Pass values from 0 to 255; "
            "normalization happens here."
        )
    if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[2] > 4):
        raise InputError(
            f"image must have the shape (H, W) or (H, W, 1 to 4 channels), not {image.shape}. "
            "Pass several images as a list."
        )
    _check_size(image.shape[1], image.shape[0], "image")
    return image[..., None] if image.ndim == 2 else image


def _check_size(width: int, height: int, name: str) -> None:
    if width * height > limits.MAX_IMAGE_PIXELS:
        raise InputError(
            f"{name} has {width} by {height} pixels, more than {limits.MAX_IMAGE_PIXELS}. "
            "Make it smaller first."
        )


def _contents(image: Any) -> tuple[bytes, str]:
    """Return the bytes of an image file, and a name for errors."""
    if isinstance(image, bytes):
        data, name = image, "image"
    elif isinstance(image, str | os.PathLike):
        data, name = _read_file(Path(image)), f"{os.fspath(image)}"
    else:
        raise InputError(
            f"image must be a path, the bytes of a file or an array (got {type(image).__name__})."
        )
    if len(data) > limits.MAX_IMAGE_BYTES:
        raise InputError(
            f"{name} has more than {limits.MAX_IMAGE_BYTES} bytes. Make it smaller first."
        )
    return data, name


def _read_file(path: Path) -> bytes:
    try:
        # a pipe or a device may never end
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise InputError(f"{path} {problem}. Check the path of the image.")
        with path.open("rb") as stream:
            return stream.read(limits.MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{str(path)[:300]!r} cannot be read: {reason}. Check the path of the image."
        ) from error


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError(
            f"Reading images needs Pillow. Run: {pip_install('vision')}, or pass arrays of "
            "the encoder's size"
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
            # whatever decoders warn about is either refused here or harmless
            warnings.simplefilter("ignore")
            opened = module.open(io.BytesIO(data), formats=FORMATS)
            _check_size(opened.width, opened.height, name)
            image: Pillow.Image = ImageOps.exif_transpose(opened)
    except InputError:
        raise
    except module.DecompressionBombError as error:
        raise InputError(
            f"{name} has far more than {limits.MAX_IMAGE_PIXELS} pixels. Make it smaller first."
        ) from error
    except module.UnidentifiedImageError as error:
        raise InputError(
            f"{name} has no supported image format ({', '.join(FORMATS)}). Convert it to one of "
            "these."
        ) from error
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        raise InputError(f"{name} is damaged: {str(error)[:200]}. Copy the file again.") from error
    return image


def _fit(image: "Pillow.Image", source: ImageSource) -> NDArray[np.uint8]:
    """Convert, then resize, in the same order as transformers: `(H, W, channels)`."""
    if image.mode not in _EIGHT_BITS:
        raise InputError(
            f"The image has the mode {image.mode!r}, without 8 bits per channel. Convert it to RGB "
            "or gray first."
        )
    mode = _MODES[source.channels]
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (source.width, source.height):
        resample = _pillow().Resampling[source.resample.upper()]
        image = image.resize((source.width, source.height), resample)
    values = np.asarray(image, np.uint8)
    return values[..., None] if values.ndim == 2 else values

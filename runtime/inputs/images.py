"""Reads images as floating-point pixels of the size an encoder needs.

Pillow is imported here only, for the first image that must be decoded, converted or resized.

An image file is untrusted input: only common formats are tried, and its size is checked before any
pixel is decoded.
"""

import io
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import Fit, ImageSource, PatchSource
from ortolan.runtime.errors import InputError, MissingExtraError
from ortolan.runtime.inputs.medium import contents

if TYPE_CHECKING:
    from PIL import Image as Pillow

Image = str | os.PathLike[str] | bytes | NDArray[np.uint8]
"""A path, the bytes of a file, or pixels `(H, W)` or `(H, W, channels)`."""

Values = NDArray[np.uint8 | np.float32]
"""Values from 0 to 255, `(H, W, channels)`; with fractions after an unrounded resize."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats to decode. Others run programs (EPS), or are rare and rarely tested."""

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by number of channels; L is gray, A is alpha."""

_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"})
"""Modes whose values have 8 bits. Pillow clips those of other modes at 255."""


_PIXEL_BYTES = {"WEBP": 16}
"""Bytes that decoding needs for a pixel, if not 4: WebP keeps two frames and a copy."""

STRIP_PIXELS = 1 << 20
"""Pixels to convert at a time, so that an image is not held several times."""


def read_pixels(image: Any, source: ImageSource) -> NDArray[np.float32]:
    """Read an image, convert it, give it the size of an encoder, and normalize its values.

    EXIF rotation is applied and the first frame is used. Transparent pixels show
    `source.background`; without one, transparency is dropped unless the encoder has a channel for
    it. `source.steps` says how the image is resized, cropped and padded.

    Args:
        image: a path, the bytes of a file, or uint8 pixels `(H, W)` or `(H, W, channels)`.
        source: size, channels and normalization of the encoder.

    Returns:
        `(value * scale - mean) / std`, `(channels, height, width)`.
    """
    fitted_HWC = _fit(read_values(image, source), source)
    pixels_CHW = normalized(fitted_HWC, source)
    height, width = fitted_HWC.shape[:2]
    return np.pad(pixels_CHW, ((0, 0), (0, source.height - height), (0, source.width - width)))


def read_values(image: Any, source: ImageSource | PatchSource) -> NDArray[np.uint8]:
    """Read an image as `(H, W, channels)`, in the channels of an encoder and its own size.

    Raises what `read_pixels` raises, except about sizes.
    """
    if not isinstance(image, np.ndarray):
        data, name = contents(
            image, "image", most=limits.MAX_IMAGE_BYTES, advice="Make it smaller first."
        )
        return _converted(_decode(data, name), source)
    values_HWC = _check_array(image)
    if values_HWC.shape[2] == source.channels:
        return values_HWC
    return _converted(_from_array(values_HWC), source)


def resized(
    values_HWC: Values, height: int, width: int, source: ImageSource | PatchSource
) -> Values:
    """Resize `(H, W, channels)` to `(height, width, channels)` with the filter of an encoder."""
    if (height, width) == values_HWC.shape[:2]:
        return values_HWC
    _check_size(width, height, "After resizing, the image")
    module, size = _pillow(), (width, height)
    resample = module.Resampling[source.resample.upper()]
    if isinstance(source, ImageSource) and source.rounding == "none":
        floats = (
            module.fromarray(values_HWC[..., channel].astype(np.float32))
            for channel in range(values_HWC.shape[2])
        )  # one at a time, since each has the size of the whole image
        return np.stack([np.asarray(each.resize(size, resample)) for each in floats], -1)
    image = _from_array(values_HWC.astype(np.uint8, copy=False)).resize(size, resample)
    return np.asarray(image, np.uint8).reshape(height, width, -1)


def normalized(values_HWC: Values, source: ImageSource | PatchSource) -> NDArray[np.float32]:
    """Return `(value * scale - mean) / std`, `(channels, height, width)`."""
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


def _check_memory(image: "Pillow.Image", name: str) -> None:
    """Check the memory that decoding needs, before it starts."""
    row_bytes = image.width * _PIXEL_BYTES.get(image.format or "", 4) + 16
    size = image.height * row_bytes
    if size > limits.MAX_IMAGE_MEMORY:
        raise InputError(
            f"{name} is {image.format} with {image.width} by {image.height} pixels, and decoding "
            f"it would need {size >> 20} MiB (at most {limits.MAX_IMAGE_MEMORY >> 20}). Make it "
            "smaller first."
        )


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
            _check_memory(opened, name)
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)
            image: Pillow.Image = opened
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


def _converted(image: "Pillow.Image", source: ImageSource | PatchSource) -> NDArray[np.uint8]:
    """Convert an image to `(H, W, channels)`."""
    if image.mode not in _EIGHT_BITS and not _has_small_integers(image):
        raise InputError(
            f"The image has the mode {image.mode!r} and values beyond 8 bits per channel. Convert "
            "it to RGB or gray first."
        )
    mode = _MODES[source.channels]
    is_mixed = source.background == "white" and image.has_transparency_data
    values_HWC = np.empty((image.height, image.width, source.channels), np.uint8)
    rows = max(1, STRIP_PIXELS // image.width)
    try:
        for top in range(0, image.height, rows):
            strip = image.crop((0, top, image.width, min(top + rows, image.height)))
            if is_mixed:
                white = _pillow().new("RGBA", strip.size, "white")
                strip = _pillow().alpha_composite(white, strip.convert("RGBA"))
            values = np.asarray(strip if strip.mode == mode else strip.convert(mode), np.uint8)
            values_HWC[top : top + rows] = values if values.ndim == 3 else values[..., None]
    except ValueError as error:
        raise InputError(
            f"The image cannot be converted from the mode {image.mode!r}: {str(error)[:200]}. "
            "Convert it to RGB first."
        ) from error
    return values_HWC


def _has_small_integers(image: "Pillow.Image") -> bool:
    """Whether an image of 16 or 32 bits loses nothing when Pillow clips its values to 8 bits."""
    if not image.mode.startswith("I"):
        return False
    values = np.asarray(image)
    return bool(values.min() >= 0 and values.max() <= 255)


def _fit(values_HWC: Values, source: ImageSource) -> Values:
    """Resize and crop: `(H, W, channels)`, to be padded to the size of the encoder."""
    steps = source.steps
    values_HWC = resized(values_HWC, *_resized_size(values_HWC.shape[:2], steps), source)
    if steps.crop is not None:
        values_HWC = _crop(values_HWC, *steps.crop)
    height, width = values_HWC.shape[:2]
    is_right = (height, width) == (source.height, source.width)
    if not is_right and not (steps.pad and height <= source.height and width <= source.width):
        raise InputError(
            f"The image has {width} by {height} pixels after the steps of the model's image "
            f"processor, and the model needs {source.width} by {source.height}. Resize it first."
        )
    return values_HWC


def _resized_size(size: tuple[int, ...], steps: Fit) -> tuple[int, int]:
    """Return height and width after the first step."""
    height, width = size
    if steps.resize is None:
        return height, width
    if isinstance(steps.resize, int):
        longest = int(steps.resize * max(size) / min(size))
        return (longest, steps.resize) if width <= height else (steps.resize, longest)
    high, wide = steps.resize
    if not steps.inside:
        return high, wide
    factor = min(high / height, wide / width)
    new = int(height * factor), int(width * factor)
    if 0 in new:
        raise InputError(
            f"An image of {width} by {height} pixels is too narrow for this model, which keeps "
            "proportions. Crop it first."
        )
    return new


def _crop(values_HWC: Values, height: int, width: int) -> Values:
    """Cut out the center, with a black border around smaller images.

    Of an odd number of pixels, a cut leaves one more at the end, and a border adds one more at
    the start.
    """
    missing = (max(0, height - values_HWC.shape[0]), max(0, width - values_HWC.shape[1]), 0)
    values_HWC = np.pad(values_HWC, [((more + 1) // 2, more // 2) for more in missing])
    top, left = (values_HWC.shape[0] - height) // 2, (values_HWC.shape[1] - width) // 2
    return values_HWC[top : top + height, left : left + width]

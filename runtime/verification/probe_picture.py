"""A picture that exercises the image processor of an encoder, and samples of its pixels."""

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sources import ImageSource

__all__ = ["LEVELS", "SAMPLES", "probe_picture", "sampled", "tolerances"]

SAMPLES = 256
"""Pixel values of the picture that a certificate keeps."""

LEVELS = 2.5
"""Tolerance in levels of 255, since Pillow rounds after each axis and may round differently by
version."""

LONGEST = 1024
"""Longest side, in pixels, of a picture that will be resized."""

_MULTIPLIER = 2_654_435_761
"""Odd, close to 2**32 divided by the golden ratio, so that its multiples look like noise."""


def probe_picture(source: ImageSource) -> NDArray[np.uint8]:
    """Make the picture, `(H, W, channels)`: noise, which every filter resizes differently.

    It has the proportions of neither the encoder nor a square, unless nothing resizes it.
    """
    height, width = source.height, source.width
    if source.steps.resize is not None:
        height, width = min(height * 3 // 2 + 1, LONGEST), min(width * 2 + 3, LONGEST)
    size = height * width * source.channels
    noise = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_MULTIPLIER)
    # Far from 0 and 255, where filters that overshoot clip between the axes: versions of Pillow
    # differ in which axis comes first.
    values = ((noise % np.uint64(1 << 32)) >> np.uint64(25)) + np.uint64(64)
    return values.astype(np.uint8).reshape(height, width, source.channels)


def sampled(pixels_CHW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return up to `SAMPLES` of the pixel values, spread over channels, rows and columns."""
    return pixels_CHW.ravel()[_places(pixels_CHW.size)]


def tolerances(source: ImageSource) -> NDArray[np.float64]:
    """Return the largest accepted difference of each sample."""
    levels_C = LEVELS * source.scale / np.array(source.std)
    area = source.height * source.width
    tolerance: NDArray[np.float64] = levels_C[_places(area * source.channels) // area]
    return tolerance


def _places(size: int) -> NDArray[np.int64]:
    return np.arange(min(size, SAMPLES), dtype=np.int64) * _MULTIPLIER % size

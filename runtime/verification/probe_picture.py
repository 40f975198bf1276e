"""Pictures that exercise an encoder of images and its image processor, and samples of pixels."""

import math

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sources import ImageSource, PatchSource

SAMPLES = 256
"""Pixel values of the picture that a certificate keeps."""

LEVELS = 2.5
"""Tolerance in levels of 255, since Pillow rounds after each axis and may round differently by
version."""

LONGEST = 1024
"""Longest side, in pixels, of a picture that will be resized or has several squares of patches."""

PICTURES = ((1, 1), (3, 5), (2, 24), (20, 3), (8, 8))
"""Rows and columns of the squares of patches of each probe of an encoder that keeps proportions."""

EXACT_LEVELS = 0.01
"""Tolerance in levels of 255 where nothing is rounded."""

_MULTIPLIER = 2_654_435_761
"""Odd, close to 2**32 divided by the golden ratio, so that its multiples look like noise."""


def probe_picture(source: ImageSource | PatchSource) -> NDArray[np.uint8]:
    """Make the picture, `(H, W, channels)`: noise, which every filter resizes differently.

    It has the proportions of neither the encoder nor a square, unless nothing resizes it.
    """
    if isinstance(source, PatchSource):
        side = source.square
        height, width = min(side * 5 // 2 + 1, LONGEST), min(side * 7 // 2 + 3, LONGEST)
        return _noise((height, width, source.channels))
    height, width = source.height, source.width
    if source.steps.resize is not None:
        height, width = min(height * 3 // 2 + 1, LONGEST), min(width * 2 + 3, LONGEST)
    return _noise((height, width, source.channels))


def sized_picture(source: PatchSource, number: int) -> NDArray[np.uint8]:
    """Make the picture of a probe, `(H, W, channels)`: noise of a size that nothing resizes."""
    return _noise((*picture_size(source, number), source.channels))


def picture_size(source: PatchSource, number: int) -> tuple[int, int]:
    """Return height and width of the picture of a probe."""
    rows, columns = PICTURES[number % len(PICTURES)]
    longest = max(1, LONGEST // source.square)
    rows = min(rows, longest, source.vectors)
    columns = min(columns, longest, source.vectors // rows)
    return rows * source.square, columns * source.square


def _noise(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Values from 64 to 191, the same on every machine."""
    noise = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(_MULTIPLIER)
    # Far from 0 and 255, where filters that overshoot clip between the axes: versions of Pillow
    # differ in which axis comes first.
    values = ((noise % np.uint64(1 << 32)) >> np.uint64(25)) + np.uint64(64)
    return values.astype(np.uint8).reshape(shape)


def sampled(pixels_CHW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return up to `SAMPLES` of the pixel values, spread over channels, rows and columns."""
    return pixels_CHW.ravel()[_places(pixels_CHW.size)]


def tolerances(
    source: ImageSource | PatchSource, pixels_CHW: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the largest accepted difference of each sample of these pixels."""
    is_exact = isinstance(source, ImageSource) and source.rounding == "none"
    levels = EXACT_LEVELS if is_exact else LEVELS
    levels_C = levels * source.scale / np.array(source.std)
    area = pixels_CHW[0].size
    tolerance: NDArray[np.float64] = levels_C[_places(pixels_CHW.size) // area]
    return tolerance


def _places(size: int) -> NDArray[np.int64]:
    return np.arange(min(size, SAMPLES), dtype=np.int64) * _MULTIPLIER % size

"""Images that keep their proportions, resized to whole squares of patches.

Shape letters: C channels, H height, W width.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.image_sources import PatchSource, WholeSquares
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.images import normalized, read_values, resized

Array = NDArray[np.float32]

PRECISION, LARGEST = 1e-5, 100.0
"""Where the bisection of a scale ends, and the largest scale, as in SigLIP 2."""


def read_whole(image: Any, source: PatchSource) -> Array:
    """Read an image and resize it to whole squares of patches, `(C, H, W)`."""
    values_HWC = read_values(image, source)
    height, width = fitted_size(values_HWC.shape[:2], source)
    return normalized(resized(values_HWC, height, width, source), source)


def fitted_size(size: tuple[int, ...], source: PatchSource) -> tuple[int, int]:
    """Height and width to which an image is resized."""
    if isinstance(source.size, WholeSquares):
        height, width = _whole_squares(size, source.square, source.size)
    else:
        height, width = _most_patches(size, source)
    if source.length(height, width) > source.vectors:
        raise InputError(
            f"An image of {size[1]} by {size[0]} pixels is too narrow for this model, which "
            f"keeps proportions and reads {source.patches} patches. Crop it first."
        )
    return height, width


def _most_patches(size: tuple[int, ...], source: PatchSource) -> tuple[int, int]:
    """The largest size with as many patches as the encoder reads."""
    low, high = PRECISION / 10, LARGEST
    while high - low >= PRECISION:
        scale = (low + high) / 2
        height, width = _scaled_up(size, scale, source.square)
        if source.length(height, width) <= source.vectors:
            low = scale
        else:
            high = scale
    return _scaled_up(size, low, source.square)


def _scaled_up(size: tuple[int, ...], scale: float, side: int) -> tuple[int, int]:
    """Both sides times a scale, rounded up to multiples of `side`."""
    height, width = (max(side, math.ceil(length * scale / side) * side) for length in size)
    return height, width


def _whole_squares(size: tuple[int, ...], side: int, limits: WholeSquares) -> tuple[int, int]:
    """Both sides rounded to multiples of `side`, within limits of their product."""
    least = 0 if limits.enlarges_narrow else side
    height, width = (max(least, round(length / side) * side) for length in size)
    if height * width > limits.most:
        factor = math.sqrt(math.prod(size) / limits.most)
        height, width = (max(side, math.floor(own / factor / side) * side) for own in size)
    elif height * width < limits.least:
        factor = math.sqrt(limits.least / math.prod(size))
        height, width = (math.ceil(own * factor / side) * side for own in size)
    return height, width

"""Images that keep their proportions, cut into flat patches.

Shape letters: C channels, H height, W width, M squares of patches, J patches of a square, F numbers
of a patch, S side of the table of positions.
"""

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sources import PatchSource, PositionTable, WholeSquares
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.images import normalized, read_values, resized

Array = NDArray[np.float32]

T = TypeVar("T", bound=np.generic)

PRECISION, LARGEST = 1e-5, 100.0
"""Where the bisection of a scale ends, and the largest scale, as in SigLIP 2."""


class FlatPatches(NamedTuple):
    """An image as a graph reads it.

    Attributes:
        patches: `(M, J, F)`.
        rows: weights of the rows of the table, `(M, J, S)`; None without a table.
        columns: weights of its columns, `(M, J, S)`; None without a table.
        positions: int64 `(M, J, 3)`; time 0, row and column; None for a graph without them.
    """

    patches: Array
    rows: Array | None = None
    columns: Array | None = None
    positions: NDArray[np.int64] | None = None


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


def flat_patches(pixels_CHW: Array, source: PatchSource) -> FlatPatches:
    """Cut the pixels of an image that `read_whole` returns."""
    size, side = source.patch, source.merge
    channels, height, width = pixels_CHW.shape
    rows, columns = height // size, width // size
    grid = pixels_CHW.reshape(channels, rows, size, columns, size)
    if source.layout == "channels_last":
        patches = grid.transpose(1, 3, 2, 4, 0)
    else:
        repeated = np.broadcast_to(grid[:, None], (channels, source.frames, *grid.shape[1:]))
        patches = repeated.transpose(2, 4, 0, 1, 3, 5)
    flat_MJF = _in_squares(patches.reshape(rows, columns, -1), side)
    positions_MJA = None
    if source.axes:
        places = np.indices((1, rows, columns), np.int64)[:, 0].transpose(1, 2, 0)
        positions_MJA = _in_squares(places, side)
    if not isinstance(source.table, PositionTable):
        return FlatPatches(flat_MJF, positions=positions_MJA)
    shape = (rows, columns, source.table.side)
    rows_HS = _interpolated(rows, source.table)[:, None]
    columns_WS = _interpolated(columns, source.table)[None]
    return FlatPatches(
        flat_MJF,
        _in_squares(np.broadcast_to(rows_HS, shape), side),
        _in_squares(np.broadcast_to(columns_WS, shape), side),
        positions_MJA,
    )


def _in_squares(values_HWF: NDArray[T], side: int) -> NDArray[T]:
    """Values of a grid of patches as `(M, J, F)`, square by square."""
    rows, columns, numbers = values_HWF.shape
    squares = values_HWF.reshape(rows // side, side, columns // side, side, numbers)
    return np.ascontiguousarray(squares.swapaxes(1, 2)).reshape(-1, side**2, numbers)


def _interpolated(count: int, table: PositionTable) -> Array:
    """Weights `(count, S)` of the rows of a table for a grid with `count` rows."""
    reach = 1.0
    if table.interpolation == "corners":
        centers_H = np.linspace(0, table.side - 1, count)
    else:
        # a triangle covers at least its width in the grid, against aliasing
        reach = max(table.side / count, 1.0)
        centers_H = np.add(np.arange(count), 0.5) * (table.side / count) - 0.5
    distances_HS = np.abs(np.arange(table.side) - centers_H[:, None]) / reach
    weights_HS = np.maximum(1 - distances_HS, 0)
    normal_HS: Array = (weights_HS / weights_HS.sum(1, keepdims=True)).astype(np.float32)
    return normal_HS

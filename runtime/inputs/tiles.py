"""Cuts images into tiles of the size that an encoder reads, and writes the texts around them.

an image of 640 by 480, tiles of 512, 1024 pixels for the longest side
resized     1024 by 768, then 1024 by 1024: 2 rows of 2 tiles, and the whole image
prompt      start  tile 1,1  tile 1,2  row  tile 2,1  tile 2,2  row  rows  whole  end

the same image and tiles, the closest shape of 1 to 12 tiles: 4/3 is closest to 640/480
resized     2048 by 1536: 3 rows of 4 tiles, and the whole image

an encoder that keeps proportions, and an image that is too large for it
resized     as by the closest shape; and the whole image to the size of an image that fits
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.parts import ClosestShape, LongestSide, Oversized, Tiles
from ortolan.runtime.inputs.images import Values, normalized, read_values, resized
from ortolan.runtime.inputs.patches import fitted_size


class Cut(NamedTuple):
    """An image in tiles.

    Attributes:
        pixels: float32 `(channels, height, width)` each; the whole image is the last one.
        rows: of tiles; 0 if there is only the whole image.
        columns: of tiles; 0 if there is only the whole image.
    """

    pixels: Sequence[NDArray[np.float32]]
    rows: int
    columns: int


def cut(image: Any, source: ImageSource | PatchSource, tiles: Tiles) -> Cut:
    """Read an image, resize it and cut it into tiles."""
    if isinstance(source, PatchSource):
        return _cut_oversized(image, source, tiles)
    high, wide = source.height, source.width
    values_HWC: Values = read_values(image, source)
    if isinstance(tiles.grid, LongestSide):
        size = _scaled(values_HWC.shape[:2], tiles.grid.pixels)
        values_HWC = resized(values_HWC, *size, source)
    rows, columns = _grid(values_HWC.shape[:2], source, tiles)
    filled_HWC = resized(values_HWC, rows * high, columns * wide, source)
    if rows * columns == 1:
        return Cut([normalized(filled_HWC, source)], 0, 0)
    parts = _parts(filled_HWC, high, wide)
    whole_HWC = filled_HWC if isinstance(tiles.grid, LongestSide) else values_HWC
    parts.append(resized(whole_HWC, high, wide, source))
    return Cut([normalized(part, source) for part in parts], rows, columns)


def _cut_oversized(image: Any, source: PatchSource, tiles: Tiles) -> Cut:
    """Cut an image into tiles if it is too large for an encoder that keeps proportions."""
    values_HWC, grid = read_values(image, source), tiles.grid
    size = values_HWC.shape[:2]
    whole = normalized(resized(values_HWC, *fitted_size(size, source), source), source)
    rounded = (max(source.patch, round(own / source.square) * source.square) for own in size)
    if not isinstance(grid, Oversized) or not tiles.split or math.prod(rounded) <= grid.pixels:
        return Cut([whole], 0, 0)
    side = grid.tile
    rows, columns = closest(size, (side, side), grid)
    if rows * columns == 1:
        return Cut([whole], 0, 0)
    filled_HWC = resized(values_HWC, rows * side, columns * side, source)
    parts = [normalized(part, source) for part in _parts(filled_HWC, side, side)]
    return Cut([*parts, whole], rows, columns)


def _parts(values_HWC: Values, high: int, wide: int) -> list[Values]:
    """The tiles of an image that they fill, row by row."""
    rows, columns = values_HWC.shape[0] // high, values_HWC.shape[1] // wide
    bands = (values_HWC[row * high : (row + 1) * high] for row in range(rows))
    return [band[:, c * wide : (c + 1) * wide] for band in bands for c in range(columns)]


def surrounded(image: Cut, tiles: Tiles, placeholder: str) -> str:
    """The text of an image in a prompt, with a placeholder for each tile and the whole image."""
    parts = [tiles.start]
    for row in range(1, image.rows + 1):
        for column in range(1, image.columns + 1):
            before = tiles.tile.replace("{row}", str(row)).replace("{column}", str(column))
            parts.append(before + placeholder)
        parts.append(tiles.row)
    if image.rows:
        parts.append(tiles.rows)
    return "".join((*parts, tiles.whole, placeholder, tiles.end))


def closest(
    size: tuple[int, ...], tile: tuple[int, int], shape: ClosestShape | Oversized
) -> tuple[int, int]:
    """Number of rows and columns whose ratio is closest to that of the image's sides."""
    height, width = size
    best, smallest = (1, 1), math.inf
    pairs = itertools.product(range(1, shape.most + 1), repeat=2)
    counted = [pair for pair in pairs if shape.least <= math.prod(pair) <= shape.most]
    for columns, rows in sorted(counted, key=math.prod):
        difference = abs(width / height - columns / rows)
        fits = 2 * height * width > rows * columns * math.prod(tile)
        if difference < smallest or (difference == smallest and fits):
            best, smallest = (rows, columns), difference
    return best


def _grid(size: tuple[int, ...], source: ImageSource, tiles: Tiles) -> tuple[int, int]:
    """Number of rows and columns."""
    if not tiles.split:
        return 1, 1
    if isinstance(tiles.grid, ClosestShape):
        return closest(size, (source.height, source.width), tiles.grid)
    height, width = _filled(size, source)
    return height // source.height, width // source.width


def _scaled(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Height and width with a longer side of `longest`, and an even shorter one."""
    height, width = size
    if width >= height:
        return _even(longest / (width / height)), longest
    return longest, _even(longest * (width / height))


def _even(length: float) -> int:
    return max(int(length) + int(length) % 2, 1)


def _filled(size: tuple[int, ...], source: ImageSource) -> tuple[int, int]:
    """Height and width that whole tiles fill."""
    height, width = size
    ratio = width / height
    if width >= height:
        width = _multiple(width, source.width)
        return _multiple(max(int(width / ratio), 1), source.height), width
    height = _multiple(height, source.height)
    return height, _multiple(max(int(height * ratio), 1), source.width)


def _multiple(length: int, side: int) -> int:
    return -(-length // side) * side

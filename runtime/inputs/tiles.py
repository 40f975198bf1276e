"""Cuts images into tiles of the size that an encoder reads, and writes the texts around them.

an image of 640 by 480, tiles of 512, `longest` 1024
resized     1024 by 768, then 1024 by 1024: 2 rows of 2 tiles, and the whole image
prompt      tile 1,1  tile 1,2  row  tile 2,1  tile 2,2  row  rows  whole  end
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import ImageSource, Tiles
from ortolan.runtime.inputs.images import normalized, read_values, resized

__all__ = ["Cut", "cut", "surrounded"]


class Cut(NamedTuple):
    """An image in tiles.

    Attributes:
        pixels: float32 `(N, channels, height, width)`; the whole image is the last one.
        rows: of tiles; 0 if there is only the whole image.
        columns: of tiles; 0 if there is only the whole image.
    """

    pixels: NDArray[np.float32]
    rows: int
    columns: int


def cut(image: Any, source: ImageSource, tiles: Tiles) -> Cut:
    """Read an image, resize it and cut it into tiles.

    Args:
        image: as `ortolan.runtime.inputs.images.read_pixels` takes it.
        source: size, channels and normalization of the encoder.
        tiles: how to cut.

    Raises:
        InputError: not an image, damaged, or too large.
        MissingExtraError: Pillow is needed but not installed.
    """
    high, wide = source.height, source.width
    values_HWC = read_values(image, source)
    values_HWC = resized(values_HWC, *_scaled(values_HWC.shape[:2], tiles.longest), source)
    whole_HWC, parts = values_HWC, list[NDArray[np.uint8]]()
    rows = columns = 0
    if tiles.split:
        height, width = _filled(values_HWC.shape[:2], source)
        whole_HWC = resized(values_HWC, height, width, source)
        rows, columns = height // high, width // wide
    if rows * columns > 1:
        bands = (whole_HWC[row * high : (row + 1) * high] for row in range(rows))
        parts = [band[:, c * wide : (c + 1) * wide] for band in bands for c in range(columns)]
    else:
        rows = columns = 0
    parts.append(resized(whole_HWC, high, wide, source))
    return Cut(np.stack([normalized(part, source) for part in parts]), rows, columns)


def surrounded(image: Cut, tiles: Tiles, placeholder: str) -> str:
    """The text of an image in a prompt, with a placeholder for each tile and the whole image."""
    parts = []
    for row in range(1, image.rows + 1):
        for column in range(1, image.columns + 1):
            before = tiles.tile.replace("{row}", str(row)).replace("{column}", str(column))
            parts.append(before + placeholder)
        parts.append(tiles.row)
    if image.rows:
        parts.append(tiles.rows)
    return "".join((*parts, tiles.whole, placeholder, tiles.end))


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

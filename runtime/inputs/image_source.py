"""Images as inputs of an encoder: of one size, or in their own proportions as flat patches.

Shape letters: C channels, H height, W width, M squares of patches, J patches of a square, F numbers
of a patch, S side of the table of positions.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import COLUMN_WEIGHTS, PATCHES, PIXELS, POSITIONS, ROW_WEIGHTS
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import Oversized, Tiles
from ortolan.runtime.bundle.sources import ImageSource, PatchSource, PositionTable
from ortolan.runtime.inputs.images import Image, read_pixels
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.source import Feeds, MediaSourceReader, Source
from ortolan.runtime.inputs.tiles import Cut, cut, cut_oversized

Array = NDArray[np.float32]

T = TypeVar("T", bound=np.generic)

PIXELS_PER_TOKEN = 64
"""Patches of 8 by 8 pixels: what an image counts as in batches."""


class ImageReader(MediaSourceReader[ImageSource]):
    """Reads images and gives them the size of the encoder."""

    def __init__(self, manifest: Manifest, source: ImageSource) -> None:
        super().__init__(manifest, source)
        self.deferred = max(1, source.height * source.width // PIXELS_PER_TOKEN)

    def _read(self, value: Any) -> Array:
        return read_pixels(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """See `SourceReader`."""
        return {PIXELS: np.stack([np.asarray(pixels, np.float32) for pixels in batch])}

    def pixels(self, image: Image) -> Array:
        """See `SourceReader`."""
        return self._read(image)

    def cut(self, image: Image, tiles: Tiles) -> Cut:
        """See `SourceReader`."""
        return cut(image, self._source, tiles)

    def vectors(self, values: Array) -> int:
        """See `SourceReader`."""
        return self._manifest.context_length


class PatchReader(MediaSourceReader[PatchSource]):
    """Reads images that keep their proportions, each alone."""

    is_alone = True

    def __init__(self, manifest: Manifest, source: PatchSource) -> None:
        super().__init__(manifest, source)
        self.deferred = source.patches

    def _read(self, value: Any) -> Array:
        return read_whole(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """See `SourceReader`."""
        (pixels_CHW,) = batch
        return patch_feeds(np.asarray(pixels_CHW, np.float32), self._source)

    def pixels(self, image: Image) -> Array:
        """See `SourceReader`."""
        return self._read(image)

    def cut(self, image: Image, tiles: Tiles) -> Cut:
        """See `SourceReader`."""
        if not isinstance(tiles.grid, Oversized):
            return super().cut(image, tiles)
        return cut_oversized(image, self._source, tiles.grid, split=tiles.split)

    def columns(self, pixels: Array) -> int:
        """See `SourceReader`."""
        return int(pixels.shape[2]) // self._source.square

    def vectors(self, values: Array) -> int:
        """See `SourceReader`."""
        return self._source.length(*values.shape[1:])


def patch_feeds(pixels_CHW: Array, source: PatchSource) -> Feeds:
    """Return the graph inputs of an image that `read_whole` returns.

    Patches are `(M, J, F)`, weights of the rows and columns of a table `(M, J, S)`, and positions
    `(M, J, 3)`: time 0, row and column.
    """
    size, side = source.patch, source.merge
    channels, height, width = pixels_CHW.shape
    rows, columns = height // size, width // size
    grid = pixels_CHW.reshape(channels, rows, size, columns, size)
    if source.layout == "channels_last":
        patches = grid.transpose(1, 3, 2, 4, 0)
    else:
        repeated = np.broadcast_to(grid[:, None], (channels, source.frames, *grid.shape[1:]))
        patches = repeated.transpose(2, 4, 0, 1, 3, 5)
    feeds: Feeds = {PATCHES: _in_squares(patches.reshape(rows, columns, -1), side)}
    if isinstance(source.table, PositionTable):
        shape = (rows, columns, source.table.side)
        rows_HS = _interpolated(rows, source.table)[:, None]
        columns_WS = _interpolated(columns, source.table)[None]
        feeds[ROW_WEIGHTS] = _in_squares(np.broadcast_to(rows_HS, shape), side)
        feeds[COLUMN_WEIGHTS] = _in_squares(np.broadcast_to(columns_WS, shape), side)
    if source.axes:
        places = np.indices((1, rows, columns), np.int64)[:, 0].transpose(1, 2, 0)
        feeds[POSITIONS] = _in_squares(places, side)
    return feeds


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

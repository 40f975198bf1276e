"""Images and sounds as inputs of an encoder, and the choice of the reader of a bundle.

Shape letters: C channels, H height, W width, M squares of patches, J patches of a square, F numbers
of a patch, S side of the table of positions.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource, PositionTable
from ortolan.runtime.bundle.manifest import Manifest, MediaSource
from ortolan.runtime.bundle.parts import Oversized, Tiles
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.source import (
    COLUMN_WEIGHTS,
    LENGTHS,
    MEL,
    PATCHES,
    PIXELS,
    POSITIONS,
    ROW_WEIGHTS,
    WAVE,
)
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.inputs.audio import Sound, chunked, read_chunks, read_parts, read_wave
from ortolan.runtime.inputs.images import Image, read_pixels
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.source import Feeds, Source, SourceReader
from ortolan.runtime.inputs.text_source import TextReader
from ortolan.runtime.inputs.tiles import Cut, cut, cut_oversized
from ortolan.runtime.inputs.tokenizer import Tokenizer

Array = NDArray[np.float32]

S = TypeVar("S", bound=MediaSource)
T = TypeVar("T", bound=np.generic)

PIXELS_PER_TOKEN = 64
"""Patches of 8 by 8 pixels: what an image counts as in batches."""


def source_of(manifest: Manifest, tokenizer: Tokenizer | None) -> SourceReader:
    """Return the reader of the inputs of a bundle's encoder."""
    reader = _READERS.get(type(manifest.source))
    return TextReader(manifest, tokenizer) if reader is None else reader(manifest, manifest.source)


class _MediaReader(SourceReader, Generic[S]):
    def __init__(self, manifest: Manifest, source: S) -> None:
        super().__init__(manifest)
        self._source = source

    def checked_truncate(self, truncate: bool) -> bool:
        if checked_flag("truncate", truncate):
            raise InputError(f"truncate is for texts, and this encoder reads {self._source.words}.")
        return truncate

    def read(self, value: Any, *, truncate: bool = False) -> Array:
        self.checked_truncate(truncate)
        return self._read(value)

    @abstractmethod
    def _read(self, value: Any) -> Array: ...


class _PictureReader(_MediaReader[S]):
    def pixels(self, image: Image) -> Array:
        return self._read(image)


class _ImageReader(_PictureReader[ImageSource]):
    def __init__(self, manifest: Manifest, source: ImageSource) -> None:
        super().__init__(manifest, source)
        self.deferred = max(1, source.height * source.width // PIXELS_PER_TOKEN)

    def _read(self, value: Any) -> Array:
        return read_pixels(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        return {PIXELS: np.asarray(batch, np.float32)}

    def cut(self, image: Image, tiles: Tiles) -> Cut:
        return cut(image, self._source, tiles)

    def vectors(self, values: Array) -> int:
        return self._manifest.context_length


class _PatchReader(_PictureReader[PatchSource]):
    is_alone = True

    def __init__(self, manifest: Manifest, source: PatchSource) -> None:
        super().__init__(manifest, source)
        self.deferred = source.patches

    def _read(self, value: Any) -> Array:
        return read_whole(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        (pixels_CHW,) = batch
        return patch_feeds(np.asarray(pixels_CHW, np.float32), self._source)

    def cut(self, image: Image, tiles: Tiles) -> Cut:
        if not isinstance(tiles.grid, Oversized):
            return super().cut(image, tiles)
        return cut_oversized(image, self._source, tiles.grid, split=tiles.split)

    def columns(self, pixels: Array) -> int:
        return int(pixels.shape[2]) // self._source.square

    def vectors(self, values: Array) -> int:
        return self._source.length(*values.shape[1:])


class _MelReader(_MediaReader[AudioSource]):
    def _read(self, value: Any) -> Array:
        chunks = list(read_chunks(value, self._source))
        return _only(chunks, self._source, advice="Split it, or call `transcribe`.")

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        return {MEL: np.asarray(batch, np.float32)}


class _WaveReader(_MediaReader[WaveSource]):
    is_alone = True

    def _read(self, value: Any) -> Array:
        return read_wave(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        return {WAVE: np.asarray(batch, np.float32)}

    def length(self, source: Source) -> int:
        return self._source.length(len(source))


class _ChunkReader(_MediaReader[ChunkedSource]):
    is_alone = True

    def _read(self, value: Any) -> Array:
        return _only(self.parts(value), self._source, advice="Split it.")

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """Return chunks `(chunks, bins, chunk)` of a sound, and the number of its vectors."""
        features_MF = np.asarray(batch[0], np.float32)
        lengths = np.array([self.vectors(features_MF)], np.int32)
        return {MEL: chunked(features_MF, self._source.chunk), LENGTHS: lengths}

    def length(self, source: Source) -> int:
        return self.vectors(np.asarray(source))

    def parts(self, sound: Sound, *, rate: int | None = None) -> list[Array]:
        return read_parts(sound, self._source, rate=rate)

    def vectors(self, values: Array) -> int:
        return self._source.length(values.shape[1])


def _only(parts: Sequence[Array], source: AudioSource | ChunkedSource, *, advice: str) -> Array:
    """The only spectrogram of a sound that has one."""
    if len(parts) > 1:
        raise ContextLengthError(
            f"The encoder reads sounds of at most {source.seconds:g} seconds. {advice}"
        )
    return parts[0]


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
    return np.asarray(weights_HS / weights_HS.sum(1, keepdims=True), np.float32)


_READERS: Mapping[type, Callable[[Manifest, Any], SourceReader]] = {
    ImageSource: _ImageReader,
    PatchSource: _PatchReader,
    AudioSource: _MelReader,
    WaveSource: _WaveReader,
    ChunkedSource: _ChunkReader,
}

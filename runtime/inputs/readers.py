"""Images and sounds as inputs of an encoder, and the choice of the reader of a bundle.

Shape letters: C channels, H height, W width, M squares of patches, J patches of a square, F numbers
of a patch, S side of the table of positions.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource, PositionTable
from ortolan.runtime.bundle.manifest import Manifest, MediaSource, wrong_kind
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.source import (
    COLUMN_WEIGHTS,
    LENGTHS,
    MEL,
    PATCHES,
    POSITIONS,
    ROW_WEIGHTS,
    Feeds,
)
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.inputs.audio import chunked, read_chunks, read_parts, read_wave
from ortolan.runtime.inputs.images import read_pixels
from ortolan.runtime.inputs.input_reader import InputReader, ReadInput
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.text_reader import TextReader
from ortolan.runtime.inputs.tokenizer import Tokenizer

Array = NDArray[np.float32]

T = TypeVar("T", bound=np.generic)


def reader_of(manifest: Manifest, tokenizer: Tokenizer | None) -> InputReader:
    """Return the reader of the inputs of a bundle's encoder."""
    match manifest.source:
        case None:
            raise wrong_kind(manifest, what="inputs", expected="a bundle with an encoder")
        case TextSource() as texts:
            return TextReader(texts, manifest, tokenizer)
        case media:
            return _MediaReader(media, manifest.context_length)


class _MediaReader(InputReader):
    """Reads images or sounds."""

    def __init__(self, source: MediaSource, vectors: int) -> None:
        super().__init__(source, vectors)
        self._source = source

    def checked_truncate(self, truncate: bool) -> bool:
        if checked_flag("truncate", truncate):
            raise InputError(f"truncate is for texts, and this encoder reads {self._source.words}.")
        return truncate

    def read(self, value: Any, *, truncate: bool = False) -> Array:
        self.checked_truncate(truncate)
        match self._source:
            case ImageSource() | PatchSource() as images:
                return read_image(value, images)
            case WaveSource() as waves:
                return read_wave(value, waves)
            case ChunkedSource() as chunks:
                return _only(read_parts(value, chunks), chunks, advice="Split it.")
            case AudioSource() as spectrograms:
                parts = list(read_chunks(value, spectrograms))
                return _only(parts, spectrograms, advice="Split it, or call `transcribe`.")

    def feeds(self, batch: Sequence[ReadInput]) -> Feeds:
        return media_feeds(batch, self._source)


def read_image(value: Any, source: ImageSource | PatchSource) -> Array:
    """Read an image as pixels `(channels, height, width)`."""
    if isinstance(source, ImageSource):
        return read_pixels(value, source)
    return read_whole(value, source)


def media_feeds(batch: Sequence[ReadInput], source: MediaSource) -> Feeds:
    """Return the graph inputs of images or sounds that were read."""
    match source:
        case PatchSource():
            return patch_feeds(np.asarray(batch[0], np.float32), source)
        case ChunkedSource():
            features_MF = np.asarray(batch[0], np.float32)
            lengths = np.array([source.count(features_MF)], np.int32)
            return {MEL: chunked(features_MF, source.chunk), LENGTHS: lengths}
        case _:
            (name,) = source.inputs()
            return {name: np.asarray(batch, np.float32)}


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

"""Sounds as inputs of an encoder: as spectrograms, as waves, or as spectrograms in chunks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import LENGTHS, MEL, WAVE
from ortolan.runtime.bundle.sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.errors import ContextLengthError
from ortolan.runtime.inputs.audio import Sound, read_chunks, read_parts, read_wave
from ortolan.runtime.inputs.source import Feeds, MediaSourceReader, Source


class MelReader(MediaSourceReader[AudioSource]):
    """Reads sounds as spectrograms of one length."""

    def _read(self, value: Any) -> NDArray[np.float32]:
        chunks = list(read_chunks(value, self._source))
        return _only(chunks, self._source.seconds, advice="Split it, or call `transcribe`.")

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """See `SourceReader`."""
        return {MEL: np.stack([np.asarray(mel_MF, np.float32) for mel_MF in batch])}


class WaveReader(MediaSourceReader[WaveSource]):
    """Reads sounds as waves of any length, each alone."""

    is_alone = True

    def _read(self, value: Any) -> NDArray[np.float32]:
        return read_wave(value, self._source)

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """See `SourceReader`."""
        return {WAVE: np.asarray(batch, np.float32)}

    def length(self, source: Source) -> int:
        """See `SourceReader`."""
        return self._source.length(len(source))


class ChunkReader(MediaSourceReader[ChunkedSource]):
    """Reads sounds as spectrograms in chunks, each alone."""

    is_alone = True

    def _read(self, value: Any) -> NDArray[np.float32]:
        return _only(self.parts(value), self._source.seconds, advice="Split it.")

    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """See `SourceReader`."""
        (mel_MF,) = batch
        return part_feeds(np.asarray(mel_MF, np.float32), self._source)

    def length(self, source: Source) -> int:
        """See `SourceReader`."""
        return self.vectors(np.asarray(source))

    def parts(self, sound: Sound, *, rate: int | None = None) -> list[NDArray[np.float32]]:
        """See `SourceReader`."""
        return read_parts(sound, self._source, rate=rate)

    def vectors(self, values: NDArray[np.float32]) -> int:
        """See `SourceReader`."""
        return self._source.length(values.shape[1])


def _only(
    parts: Sequence[NDArray[np.float32]], seconds: float, *, advice: str
) -> NDArray[np.float32]:
    """The only spectrogram of a sound that has one."""
    if len(parts) > 1:
        raise ContextLengthError(
            f"The encoder reads sounds of at most {seconds:g} seconds. {advice}"
        )
    return parts[0]


def part_feeds(features_MF: NDArray[np.float32], source: ChunkedSource) -> Feeds:
    """Return the graph inputs of a part: its chunks `(K, bins, chunk)`, and its vectors `(1,)`."""
    frames = features_MF.shape[1]
    padded_MF = np.pad(features_MF, ((0, 0), (0, -frames % source.chunk)))
    chunks_MKF = padded_MF.reshape(source.bins, -1, source.chunk)
    return {
        MEL: np.ascontiguousarray(chunks_MKF.swapaxes(0, 1)),
        LENGTHS: np.array([source.length(frames)], np.int32),
    }

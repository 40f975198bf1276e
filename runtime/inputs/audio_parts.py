"""Reads sounds as spectrograms of whole chunks, for encoders that read any length.

Shape letters: N samples, M mel bins, F frames, K chunks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import LENGTHS, MEL
from ortolan.runtime.bundle.manifest import ChunkedSource
from ortolan.runtime.inputs.audio import Sound, log_mel, read_samples

__all__ = ["part_feeds", "read_parts"]


def read_parts(
    sound: Sound, source: ChunkedSource, *, rate: int | None = None
) -> list[NDArray[np.float32]]:
    """Read a sound as the parts of its spectrogram that an encoder reads one by one.

    Args:
        sound: as for `ortolan.runtime.inputs.audio.read_samples`.
        source: what the encoder needs.
        rate: as for `read_samples`.

    Returns:
        float32 `(bins, F)` each, of at most `source.frames` frames.

    Raises:
        InputError: as `read_samples`.
        MissingExtraError: as `read_samples`.
    """
    samples_N = read_samples(sound, source, rate=rate)
    missing = max(source.shortest, source.hop) - len(samples_N)
    features_MF = log_mel(np.pad(samples_N, (0, max(missing, 0))), source)
    starts = range(0, features_MF.shape[1], source.frames)
    return [features_MF[:, start : start + source.frames] for start in starts]


def part_feeds(features_MF: NDArray[np.float32], source: ChunkedSource) -> dict[str, NDArray[Any]]:
    """Return the graph inputs of a part: its chunks `(K, bins, chunk)`, and its vectors `(1,)`."""
    frames = features_MF.shape[1]
    padded_MF = np.pad(features_MF, ((0, 0), (0, -frames % source.chunk)))
    chunks_MKF = padded_MF.reshape(source.bins, -1, source.chunk)
    return {
        MEL: np.ascontiguousarray(chunks_MKF.swapaxes(0, 1)),
        LENGTHS: np.array([source.length(frames)], np.int32),
    }

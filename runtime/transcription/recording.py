"""Sounds that are read window by window, whole or while they are recorded.

Shape letters: N samples, M mel bins, F frames.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import AudioSource
from ortolan.runtime.inputs.audio import log_mel

__all__ = ["LiveRecording", "Recording", "Windows"]


class Windows(Protocol):
    """A sound that is read window by window.

    Attributes:
        frame: first frame of the current window.
    """

    frame: int

    def window(self) -> tuple[NDArray[np.float32], int]:
        """Return a spectrogram `(bins, frames)`, and the number of its frames before padding."""

    def move(self, frames: int) -> None:
        """Start the next window this number of frames later."""


class Recording:
    """A whole sound. Its loudest part sets the scale of all windows, as in training.

    Args:
        samples_N: at the rate of the encoder.
        source: what the encoder reads.

    Attributes:
        seconds: length of the sound.
    """

    def __init__(self, samples_N: NDArray[np.float32], source: AudioSource) -> None:
        self._source = source
        self.seconds = len(samples_N) / source.rate
        self._frames = max(1, len(samples_N) // source.hop)
        missing = max(0, source.samples - len(samples_N))
        self._features_MF = log_mel(np.pad(samples_N, (0, missing)), source)
        self.frame = 0

    @property
    def is_done(self) -> bool:
        """Whether all windows were read."""
        return self.frame >= self._frames

    def window(self) -> tuple[NDArray[np.float32], int]:
        """See `Windows`."""
        size = self._source.frames
        window_MF = self._features_MF[:, self.frame : self.frame + size]
        padded_MF = np.pad(window_MF, ((0, 0), (0, size - window_MF.shape[1])))
        return padded_MF, min(self._frames - self.frame, size)

    def move(self, frames: int) -> None:
        """See `Windows`."""
        self.frame += frames


class LiveRecording:
    """A sound that grows. Each window has its own scale, since what follows is not known.

    Args:
        source: what the encoder reads.
    """

    def __init__(self, source: AudioSource) -> None:
        self._source = source
        self._samples_N = np.zeros(0, np.float32)
        self.frame = 0

    @property
    def frames(self) -> int:
        """Frames that are not transcribed yet."""
        return len(self._samples_N) // self._source.hop

    @property
    def is_full(self) -> bool:
        """Whether there is a whole window."""
        return self.frames >= self._source.frames

    def extend(self, samples_N: NDArray[np.float32]) -> None:
        """Add samples at the rate of the encoder."""
        self._samples_N = np.concatenate([self._samples_N, samples_N])

    def window(self) -> tuple[NDArray[np.float32], int]:
        """See `Windows`."""
        source = self._source
        samples_N = self._samples_N[: source.samples]
        padded_N = np.pad(samples_N, (0, source.samples - len(samples_N)))
        return log_mel(padded_N, source), min(self.frames, source.frames)

    def move(self, frames: int) -> None:
        """See `Windows`."""
        self.frame += frames
        self._samples_N = self._samples_N[frames * self._source.hop :]

"""Sounds that are read window by window, whole or while they are recorded.

Shape letters: N samples, M mel bins, F frames.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sources import AudioSource, WaveSource
from ortolan.runtime.errors import ContextLengthError
from ortolan.runtime.inputs.audio import log_mel, wave_of
from ortolan.runtime.transcription.quiet import SEARCHED, quiet_cut

TOKENS_PER_SECOND = 6.5
"""Default of the most tokens for a second of a wave: English has fewer, and a model that repeats
itself ends there. Source: the model cards of Moonshine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a sound, as an encoder reads it.

    Attributes:
        source: a spectrogram `(bins, frames)` or a wave `(N,)`.
        vectors: that the encoder makes of its sound, without padding.
        seconds: length of its sound.
        most_tokens: most new tokens; `None` without a limit.
    """

    source: NDArray[np.float32]
    vectors: int
    seconds: float
    most_tokens: int | None = None


class Windows(ABC):
    """A sound that is read window by window."""

    def __init__(self, source: AudioSource | WaveSource) -> None:
        self._rate = source.rate
        self._at = 0

    @property
    def start(self) -> float:
        """Seconds from the start of the sound to the current window."""
        return self._at / self._rate

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether all windows were read."""

    @abstractmethod
    def window(self) -> Window:
        """Return the current window."""

    @abstractmethod
    def move(self, vectors: int | None) -> None:
        """Start the next window this number of vectors later; `None` for the end of this one."""


class LiveWindows(Windows):
    """A sound that grows."""

    def __init__(self, source: AudioSource | WaveSource) -> None:
        super().__init__(source)
        self._samples_N = np.zeros(0, np.float32)

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether there is a whole window."""

    def extend(self, samples_N: NDArray[np.float32]) -> None:
        """Add samples at the rate of the encoder."""
        self._samples_N = np.concatenate([self._samples_N, samples_N])

    def _drop(self, samples: int) -> None:
        """Go on after the first samples."""
        self._at += samples
        self._samples_N = self._samples_N[samples:]


def whole_windows(
    samples_N: NDArray[np.float32],
    source: AudioSource | WaveSource,
    *,
    context_length: int,
    tokens_per_second: float = TOKENS_PER_SECOND,
) -> Windows:
    """Return the windows of a whole sound."""
    if isinstance(source, AudioSource):
        return Recording(samples_N, source)
    parts = WaveParts(source, context_length, tokens_per_second)
    parts.extend(samples_N)
    return parts


def live_windows(
    source: AudioSource | WaveSource,
    *,
    context_length: int,
    tokens_per_second: float = TOKENS_PER_SECOND,
) -> LiveWindows:
    """Return the windows of a sound that is recorded; arguments as of `whole_windows`."""
    if isinstance(source, AudioSource):
        return LiveRecording(source)
    return WaveParts(source, context_length, tokens_per_second)


class Recording(Windows):
    """A whole sound. Its loudest part sets the scale of all windows, as in training."""

    def __init__(self, samples_N: NDArray[np.float32], source: AudioSource) -> None:
        super().__init__(source)
        self._source = source
        self._frames = max(1, len(samples_N) // source.hop)
        missing = max(0, source.samples - len(samples_N))
        self._features_MF = log_mel(np.pad(samples_N, (0, missing)), source)

    @property
    def is_done(self) -> bool:
        """See `Windows`."""
        return self._left <= 0

    def window(self) -> Window:
        """See `Windows`."""
        size, first = self._source.frames, self._at // self._source.hop
        window_MF = self._features_MF[:, first : first + size]
        padded_MF = np.pad(window_MF, ((0, 0), (0, size - window_MF.shape[1])))
        return _window(padded_MF, self._source, self._left)

    def move(self, vectors: int | None) -> None:
        """See `Windows`."""
        frames = self._left if vectors is None else vectors * _stride(self._source)
        self._at += frames * self._source.hop

    @property
    def _left(self) -> int:
        """Frames of the sound in the current window."""
        return min(self._frames - self._at // self._source.hop, self._source.frames)


class LiveRecording(LiveWindows):
    """A sound that grows. Each window has its own scale, since what follows is not known."""

    def __init__(self, source: AudioSource) -> None:
        super().__init__(source)
        self._source = source

    @property
    def is_done(self) -> bool:
        """See `Windows`."""
        return self._left == 0

    @property
    def is_full(self) -> bool:
        """See `LiveWindows`."""
        return self._left == self._source.frames

    def window(self) -> Window:
        """See `Windows`."""
        source = self._source
        samples_N = self._samples_N[: source.samples]
        padded_N = np.pad(samples_N, (0, source.samples - len(samples_N)))
        return _window(log_mel(padded_N, source), source, self._left)

    def move(self, vectors: int | None) -> None:
        """See `Windows`."""
        frames = self._left if vectors is None else vectors * _stride(self._source)
        self._drop(frames * self._source.hop)

    @property
    def _left(self) -> int:
        """Frames of the sound in the current window."""
        return min(len(self._samples_N) // self._source.hop, self._source.frames)


class WaveParts(LiveWindows):
    """A sound, whole or growing, that is cut where it is quietest."""

    def __init__(
        self,
        source: WaveSource,
        context_length: int,
        tokens_per_second: float = TOKENS_PER_SECOND,
    ) -> None:
        super().__init__(source)
        self._source, self._pace = source, tokens_per_second
        room = int((context_length - 1) / tokens_per_second * source.rate)
        self._longest = min(source.samples, room)
        if self._longest // SEARCHED <= source.window:
            raise ContextLengthError(
                f"This bundle writes at most {context_length - 1} tokens about at most "
                f"{source.seconds:g} seconds, too little to transcribe. Export it with a larger "
                "--max-context, or lower tokens_per_second."
            )

    @property
    def is_done(self) -> bool:
        """See `Windows`."""
        return len(self._samples_N) == 0

    @property
    def is_full(self) -> bool:
        """See `LiveWindows`."""
        return len(self._samples_N) > self._longest + self._source.window

    def window(self) -> Window:
        """See `Windows`."""
        source, end = self._source, self._end
        seconds = end / source.rate
        return Window(
            source=wave_of(self._samples_N[:end], source),
            vectors=math.ceil(end / source.hop),
            seconds=seconds,
            most_tokens=math.ceil(seconds * self._pace),
        )

    def move(self, vectors: int | None) -> None:
        """See `Windows`."""
        self._drop(self._end if vectors is None else vectors * self._source.hop)

    @property
    def _end(self) -> int:
        """Samples of the current window."""
        return quiet_cut(
            self._samples_N,
            rate=self._source.rate,
            longest=self._longest,
            shortest=self._source.window,
        )


def _stride(source: AudioSource) -> int:
    """Frames per vector."""
    return source.frames // source.vectors


def _window(features_MF: NDArray[np.float32], source: AudioSource, frames: int) -> Window:
    """The window of a spectrogram whose first frames are those of the sound."""
    vectors = max(1, frames // _stride(source))
    return Window(source=features_MF, vectors=vectors, seconds=vectors * source.step_s)

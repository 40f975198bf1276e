"""Sounds that are read window by window, whole or while they are recorded.

Long waves are cut where they are quietest:

    sound     ..... hello there ...... how are you ......
    windows   |----------------------|------------------|

Shape letters: N samples, M mel bins, F frames.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.errors import ContextLengthError
from ortolan.runtime.inputs.audio import log_mel, wave_of

TOKENS_PER_SECOND = 6.5
"""Default of the most tokens for a second of a wave: English has fewer, and a model that repeats
itself ends there. Source: the model cards of Moonshine."""

SEARCHED = 8
"""The quietest place is looked for in the last eighth of a part."""

QUIET_FRAMES_PER_SECOND = 100

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a sound, as an encoder reads it.

    Attributes:
        source: a spectrogram `(bins, frames)` or a wave `(N,)`.
        vectors: that the encoder makes of its sound, without padding.
        seconds: length of its sound.
        most_tokens: most new tokens; `None` without a limit.
    """

    source: Array
    vectors: int
    seconds: float
    most_tokens: int | None = None


class Windows(ABC):
    """A sound that is read window by window, and may grow.

    Attributes:
        step: samples for a vector.
    """

    step: int

    def __init__(self, rate: int, samples_N: Array | None) -> None:
        self._rate = rate
        self._at = 0
        # from the current window on
        self._samples_N = np.zeros(0, np.float32) if samples_N is None else samples_N

    @property
    def start(self) -> float:
        """Seconds from the start of the sound to the current window."""
        return self._at / self._rate

    @property
    def is_done(self) -> bool:
        """Whether all windows were read."""
        return self._size == 0

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether what follows can no longer change the current window."""

    @property
    @abstractmethod
    def _size(self) -> int:
        """Samples of the current window."""

    @abstractmethod
    def window(self) -> Window:
        """Return the current window."""

    def extend(self, samples_N: Array) -> None:
        """Add samples at the rate of the encoder."""
        self._samples_N = np.concatenate([self._samples_N, samples_N])

    def move(self, vectors: int | None) -> None:
        """Start the next window this number of vectors later; `None` for the end of this one."""
        samples = self._size if vectors is None else vectors * self.step
        self._at += samples
        self._samples_N = self._samples_N[samples:]


def windows_of(
    samples_N: Array | None,
    source: AudioSource | WaveSource,
    *,
    context_length: int,
    tokens_per_second: float = TOKENS_PER_SECOND,
) -> Windows:
    """Return the windows of a whole sound, or of one that is recorded (`None`)."""
    if isinstance(source, WaveSource):
        return _WaveParts(samples_N, source, context_length, tokens_per_second)
    return _Spectrograms(samples_N, source)


class _Spectrograms(Windows):
    """Spectrograms of a sound. Its loudest part sets the scale of all, as in training.

    Of a sound that grows, each has its own scale, since what follows is not known.
    """

    def __init__(self, samples_N: Array | None, source: AudioSource) -> None:
        self._source = source
        self.step = source.frames // source.vectors * source.hop
        self._whole_MF = None
        if samples_N is not None:
            self._whole_MF = log_mel(samples_N, source, least=source.samples)
            # the shortest sound has a frame
            samples_N = np.pad(samples_N, (0, max(0, source.hop - len(samples_N))))
        super().__init__(source.rate, samples_N)

    @property
    def is_full(self) -> bool:
        return self._size == self._source.samples

    @property
    def _size(self) -> int:
        hop = self._source.hop
        return min(len(self._samples_N) // hop * hop, self._source.samples)

    def window(self) -> Window:
        source, size = self._source, self._source.frames
        if self._whole_MF is None:
            features_MF = log_mel(self._samples_N[: source.samples], source, least=source.samples)
        else:
            first = self._at // source.hop
            features_MF = self._whole_MF[:, first : first + size]
            features_MF = np.pad(features_MF, ((0, 0), (0, size - features_MF.shape[1])))
        vectors = max(1, self._size // self.step)
        return Window(source=features_MF, vectors=vectors, seconds=vectors * source.step_s)


class _WaveParts(Windows):
    """A sound, whole or growing, that is cut where it is quietest."""

    def __init__(
        self, samples_N: Array | None, source: WaveSource, context_length: int, pace: float
    ) -> None:
        super().__init__(source.rate, samples_N)
        self._source, self._pace, self.step = source, pace, source.hop
        room = int((context_length - 1) / pace * source.rate)
        self._longest = min(source.samples, room)
        if self._longest // SEARCHED <= source.window:
            raise ContextLengthError(
                f"This bundle writes at most {context_length - 1} tokens about at most "
                f"{source.seconds:g} seconds, too little to transcribe. Export it with a larger "
                "--max-context, or lower tokens_per_second."
            )

    @property
    def is_full(self) -> bool:
        return len(self._samples_N) > self._longest + self._source.window

    @property
    def _size(self) -> int:
        return quiet_cut(
            self._samples_N,
            rate=self._source.rate,
            longest=self._longest,
            shortest=self._source.window,
        )

    def window(self) -> Window:
        size = self._size
        seconds = size / self._source.rate
        return Window(
            source=wave_of(self._samples_N[:size], self._source),
            vectors=math.ceil(size / self._source.hop),
            seconds=seconds,
            most_tokens=math.ceil(seconds * self._pace),
        )


def quiet_cut(samples_N: Array, *, rate: int, longest: int, shortest: int = 0) -> int:
    """Return the number of samples of the first part of a sound; all of it if it fits."""
    if len(samples_N) <= longest:
        return len(samples_N)
    frame = max(1, rate // QUIET_FRAMES_PER_SECOND)
    start = longest - longest // SEARCHED
    last_N = samples_N[start : min(longest, len(samples_N) - shortest)]
    if len(last_N) < frame:
        return start
    frames_F = np.abs(last_N[: len(last_N) // frame * frame]).reshape(-1, frame).mean(1)
    return start + int(frames_F.argmin()) * frame + frame // 2

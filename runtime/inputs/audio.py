"""Reads sounds as log-mel spectrograms or as waves.

soxr is imported here only, for the first sound of another sampling rate.

Shape letters: N samples, C channels, F frames, M mel bins, W samples of a window, K chunks.
"""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.errors import ContextLengthError, InputError, MissingExtraError, shown
from ortolan.runtime.inputs.sound_file import BLOCK, Blocks, check_size, mono, open_blocks
from ortolan.runtime.machine.exit_guard import native_call

Sound = str | os.PathLike[str] | bytes | NDArray[Any]
"""A path, the bytes of a file, or samples `(N,)` or `(N, channels)`."""

FLOOR = 1e-10
"""Least power before the logarithm."""

RANGE = 8.0
"""Powers of ten below the loudest value that are kept."""

LEAST_VARIANCE = 1e-7
"""Added to the variance of a wave before its root."""

FRAMES_AT_ONCE = 4096
"""Frames of a spectrum that are computed at once to bound memory."""

RATE_OF_FILE = "rate is for arrays of samples; a file states its own. Leave it out."

LOUDEST = 32.0
"""Largest sample. Files of floats exceed 1 a little; integers that were not scaled, far more."""


def read_chunks(
    sound: Sound, source: AudioSource, *, rate: int | None = None
) -> NDArray[np.float32]:
    """Read a sound as spectrograms of the length that an encoder needs.

    A sound up to one chunk is padded with silence. A longer one has a single spectrogram, whose
    last chunk is padded with zeros: `(K, bins, frames)`.
    """
    samples_N = read_samples(sound, source, rate=rate)
    features_MF = log_mel(samples_N, source, least=source.samples)
    return chunked(features_MF, source.frames)


def chunked(features_MF: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Cut a spectrogram into chunks `(K, bins, frames)`; zeros fill the last one."""
    padded_MF = np.pad(features_MF, ((0, 0), (0, -features_MF.shape[1] % frames)))
    return np.ascontiguousarray(padded_MF.reshape(len(padded_MF), -1, frames).swapaxes(0, 1))


def read_parts(
    sound: Sound, source: ChunkedSource, *, rate: int | None = None
) -> list[NDArray[np.float32]]:
    """Read a sound as the parts of its spectrogram that an encoder reads, `(bins, F)` each."""
    samples_N = read_samples(sound, source, rate=rate)
    features_MF = log_mel(samples_N, source, least=max(source.shortest, source.hop))
    starts = range(0, features_MF.shape[1], source.frames)
    return [features_MF[:, start : start + source.frames] for start in starts]


def read_wave(sound: Sound, source: WaveSource) -> NDArray[np.float32]:
    """Read a sound as the wave that an encoder needs, `(N,)`."""
    samples_N = read_samples(sound, source)
    if len(samples_N) > source.samples:
        raise ContextLengthError(
            f"The encoder reads sounds of at most {source.seconds:g} seconds (got "
            f"{len(samples_N) / source.rate:.2f}). Split it, or call `transcribe`."
        )
    return wave_of(samples_N, source)


def wave_of(samples_N: NDArray[np.float32], source: WaveSource) -> NDArray[np.float32]:
    """Return samples as the encoder reads them: `(x - mean) / sqrt(variance + 1e-7)`, or unchanged.

    Source: Wav2Vec2FeatureExtractor of transformers.
    """
    if len(samples_N) < source.window:
        raise InputError(
            f"The encoder reads sounds of at least {source.window} samples at {source.rate} Hz "
            f"(got {len(samples_N)}). Leave it out, or add silence."
        )
    if not source.normalized:
        return samples_N
    exact_N = samples_N.astype(np.float64)
    scaled_N = (exact_N - exact_N.mean()) / np.sqrt(exact_N.var() + LEAST_VARIANCE)
    return np.asarray(scaled_N, np.float32)


def read_samples(
    sound: Sound, source: AudioSource | WaveSource | ChunkedSource, *, rate: int | None = None
) -> NDArray[np.float32]:
    """Read a sound as the mean of its channels, at the rate of the encoder.

    Args:
        sound: a path, the bytes of a file, or samples `(N,)` or `(N, channels)`: floats from -1 to
            1, int16 or int32.
        source: what the encoder needs.
        rate: samples per second of an array; by default the rate of the encoder. Files state
            theirs.

    Returns:
        float32 `(N,)`.
    """
    if isinstance(sound, np.ndarray):
        own, blocks = _array_blocks(sound, source.rate if rate is None else rate)
    elif rate is not None:
        raise InputError(RATE_OF_FILE)
    else:
        own, blocks = open_blocks(sound)
    resample = None if own == source.rate else _Resampling(own, source.rate)
    parts, count = [np.zeros(0, np.float32)], 0
    for block_N in blocks:
        # NaN fails every comparison
        if len(block_N) and not np.abs(block_N).max() <= LOUDEST:
            raise InputError(
                f"Samples must be finite and between -1 and 1 (got {np.abs(block_N).max()}). "
                "Divide integers that were converted to floats by their largest value."
            )
        count += len(block_N)
        parts.append(block_N if resample is None else resample.next(block_N))
    if count == 0:
        raise InputError("The sound has no samples. Leave it out.")
    if resample is not None:
        parts.append(resample.last())
    samples_N = np.concatenate(parts)
    if len(samples_N) == 0:
        raise InputError(f"The sound has less than one sample at {source.rate} Hz. Leave it out.")
    return samples_N


def read_blocks(
    blocks: Iterable[Sound], source: AudioSource | WaveSource, *, rate: int | None = None
) -> Iterator[NDArray[np.float32]]:
    """Read a sound that comes in blocks; arguments, results and errors as of `read_samples`."""
    resample = None
    if rate is not None and _checked_rate(rate) != source.rate:
        check_size(0, rate, 1, "The sound")
        resample = _Resampling(rate, source.rate)
    for block in blocks:
        if rate is not None and not isinstance(block, np.ndarray):
            raise InputError(RATE_OF_FILE)
        samples_N = read_samples(block, source)
        yield samples_N if resample is None else resample.next(samples_N)
    if resample is not None:
        yield resample.last()


def log_mel(
    samples_N: NDArray[np.float32], source: AudioSource | ChunkedSource, *, least: int = 0
) -> NDArray[np.float32]:
    """Return the scaled logarithm of the mel spectrogram, `(bins, N // hop)`.

    Silence fills a sound of fewer than `least` samples.
    Values are `max(log10(power), loudest - 8) / 4 + 1`, where `loudest` is the largest of the
    sound (Radford et al. 2023, "Robust Speech Recognition via Large-Scale Weak Supervision").
    """
    samples_N = np.pad(samples_N, (0, max(0, least - len(samples_N))))
    side = source.window // 2
    padded = np.pad(samples_N, side, mode="reflect")
    frames_FW = np.lib.stride_tricks.sliding_window_view(padded, source.window)[:: source.hop]
    frames_FW = frames_FW[: len(samples_N) // source.hop]
    # Hann, whose period is the window
    window_W = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(source.window) / source.window)
    filters = mel_filters(source)
    features_MF = np.empty((source.bins, len(frames_FW)), np.float32)
    for start in range(0, len(frames_FW), FRAMES_AT_ONCE):
        part = slice(start, start + FRAMES_AT_ONCE)
        power = np.abs(np.fft.rfft(frames_FW[part] * window_W)) ** 2
        features_MF[:, part] = np.log10(np.maximum(filters @ power.T, FLOOR))
    np.maximum(features_MF, features_MF.max() - np.float32(RANGE), out=features_MF)
    return np.asarray(features_MF / np.float32(4) + np.float32(1))


def mel_filters(source: AudioSource | ChunkedSource) -> NDArray[np.float64]:
    """Return triangles of equal area on Slaney's mel scale, `(bins, window // 2 + 1)`.

    The scale is linear up to 1 kHz and logarithmic above (Slaney 1998, "Auditory Toolbox").
    """
    mels = np.linspace(0.0, _mel(source.highest), source.bins + 2)
    # 15 mels at 1 kHz, and 27 mels for a factor of 6.4
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * math.log(6.4) / 27))
    frequencies = np.linspace(0.0, source.rate // 2, source.window // 2 + 1)
    slopes = (frequencies - edges[:, None]) / np.diff(edges, append=np.inf)[:, None]
    rising, falling = slopes[:-2], 1 - slopes[1:-1]
    areas = 2.0 / (edges[2:] - edges[:-2])
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * areas[:, None])


def _mel(frequency: float) -> float:
    if frequency < 1000:
        return frequency * 3 / 200
    return 15 + math.log(frequency / 1000) * 27 / math.log(6.4)


def _array_blocks(sound: NDArray[Any], rate: object) -> Blocks:
    rate = _checked_rate(rate)
    if sound.ndim not in (1, 2):
        raise InputError(
            f"A sound must have the shape (N,) or (N, channels), not {sound.shape}. Pass several "
            "sounds as a list."
        )
    if sound.dtype.kind == "f":
        scale = 1.0
    elif sound.dtype in (np.int16, np.int32):
        scale = 1.0 / -float(np.iinfo(sound.dtype).min)
    else:
        raise InputError(
            f"Samples must be floats, int16 or int32 (got {sound.dtype}). Convert them first."
        )
    channels = 1 if sound.ndim == 1 else sound.shape[1]
    check_size(len(sound), rate, channels, "The sound")
    return rate, _scaled_blocks(sound.reshape(len(sound), channels), scale)


def _scaled_blocks(sound_NC: NDArray[Any], scale: float) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(sound_NC), BLOCK):
        # a huge double becomes infinite, which is rejected with a better message
        with np.errstate(over="ignore"):
            block_NC = (sound_NC[start : start + BLOCK] * scale).astype(np.float32)
        yield mono(block_NC)


def _checked_rate(rate: object) -> int:
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise InputError(f"rate must be a number of samples per second (got {shown(rate)}).")
    return rate


class _Resampling:
    """Resamples a sound block by block; the result does not depend on the blocks."""

    def __init__(self, rate: int, wanted: int) -> None:
        try:
            import soxr
        except ImportError as error:
            raise MissingExtraError(
                f"Resampling from {rate} to {wanted} Hz needs soxr. Run: {pip_install('audio')}, "
                f"or pass samples at {wanted} Hz"
            ) from error
        self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    @native_call()
    def next(self, samples_N: NDArray[np.float32], *, last: bool = False) -> NDArray[np.float32]:
        return np.asarray(self._stream.resample_chunk(samples_N, last=last), np.float32)

    def last(self) -> NDArray[np.float32]:
        return self.next(np.zeros(0, np.float32), last=True)

"""Reads sounds as log-mel spectrograms or as waves.

soundfile and soxr are imported here only: for the first file to decode, and the first sound of
another sampling rate.

A sound file is untrusted input: only common formats are decoded, and its length, channels and rate
are checked before any sample is.

Shape letters: N samples, C channels, F frames, M mel bins, W samples of a window, K chunks.
"""

import io
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime import limits
from ortolan.runtime.bundle.sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.errors import ContextLengthError, InputError, MissingExtraError, shown

__all__ = [
    "Sound",
    "log_mel",
    "mel_filters",
    "read_blocks",
    "read_chunks",
    "read_parts",
    "read_samples",
    "read_wave",
    "wave_of",
]

Sound = str | os.PathLike[str] | bytes | NDArray[Any]
"""A path, the bytes of a file, or samples `(N,)` or `(N, channels)`."""

FORMATS = ("AIFF", "FLAC", "MP3", "OGG", "WAV", "WAVEX")
"""Formats to decode, as soundfile names them. Others are rare and rarely tested."""

FLOOR = 1e-10
"""Least power before the logarithm."""

RANGE = 8.0
"""Powers of ten below the loudest value that are kept."""

LEAST_VARIANCE = 1e-7
"""Added to the variance of a wave before its root."""

FRAMES_AT_ONCE = 4096
BLOCK = 1 << 16
"""Frames of a spectrum, and samples of a file, that are computed at once to bound memory."""

LOUDEST = 32.0
"""Largest sample. Files of floats exceed 1 a little; integers that were not scaled, far more."""


def read_chunks(
    sound: Sound, source: AudioSource, *, rate: int | None = None
) -> NDArray[np.float32]:
    """Read a sound as spectrograms of the length that an encoder needs.

    A sound up to one chunk is padded with silence. A longer one has a single spectrogram, whose
    last chunk is padded with zeros.

    Args:
        sound: as for `read_samples`.
        source: what the encoder needs.
        rate: as for `read_samples`.

    Returns:
        float32 `(K, bins, frames)`.

    Raises:
        InputError: as `read_samples`.
        MissingExtraError: as `read_samples`.
    """
    samples_N = read_samples(sound, source, rate=rate)
    missing = source.frames * source.hop - len(samples_N)
    features_MF = log_mel(np.pad(samples_N, (0, max(missing, 0))), source)
    chunks = math.ceil(features_MF.shape[1] / source.frames)
    rest = chunks * source.frames - features_MF.shape[1]
    padded_MF = np.pad(features_MF, ((0, 0), (0, rest)))
    chunked_MKF = padded_MF.reshape(source.bins, chunks, source.frames)
    return np.ascontiguousarray(chunked_MKF.swapaxes(0, 1))


def read_parts(
    sound: Sound, source: ChunkedSource, *, rate: int | None = None
) -> list[NDArray[np.float32]]:
    """Read a sound as the parts of its spectrogram that an encoder reads one by one.

    Args:
        sound: as for `read_samples`.
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


def read_wave(sound: Sound, source: WaveSource) -> NDArray[np.float32]:
    """Read a sound as the wave that an encoder needs, `(N,)`.

    Raises:
        ContextLengthError: longer than the encoder reads.
        InputError: as `read_samples`, or shorter than a window.
        MissingExtraError: as `read_samples`.
    """
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

    Args:
        samples_N: at the rate of the encoder.
        source: what the encoder needs.

    Raises:
        InputError: shorter than a window.
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
    wave_N: NDArray[np.float32] = scaled_N.astype(np.float32)
    return wave_N


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

    Raises:
        InputError: not a sound, empty, damaged, cut off, too long, or with values that are not
            finite or far beyond 1.
        MissingExtraError: soundfile or soxr is needed but not installed.
    """
    if isinstance(sound, np.ndarray):
        rate = source.rate if rate is None else rate
        samples_N = _check_array(sound, rate)
    elif rate is not None:
        raise InputError("rate is for arrays of samples; a file states its own. Leave it out.")
    else:
        samples_N, rate = _decode(*_contents(sound))
    if len(samples_N) == 0:
        raise InputError("The sound has no samples. Leave it out.")
    # NaN fails every comparison
    if not np.abs(samples_N).max() <= LOUDEST:
        raise InputError(
            f"Samples must be finite and between -1 and 1 (got {np.abs(samples_N).max()}). Divide "
            "integers that were converted to floats by their largest value."
        )
    if rate != source.rate:
        samples_N = _resampled(samples_N, rate, source.rate)
    return samples_N


def read_blocks(
    blocks: Iterable[Sound], source: AudioSource | WaveSource, *, rate: int | None = None
) -> Iterator[NDArray[np.float32]]:
    """Read a sound that comes in blocks; arguments, results and errors as of `read_samples`."""
    resample = None
    if rate is not None and _checked_rate(rate) != source.rate:
        _check_size(0, rate, 1, "The sound")
        resample = _soxr(rate, source.rate).ResampleStream(rate, source.rate, 1, dtype="float32")
    for block in blocks:
        samples_N = read_samples(block, source)
        yield samples_N if resample is None else resample.resample_chunk(samples_N)
    if resample is not None:
        yield resample.resample_chunk(np.zeros(0, np.float32), last=True)


def log_mel(
    samples_N: NDArray[np.float32], source: AudioSource | ChunkedSource
) -> NDArray[np.float32]:
    """Return the scaled logarithm of the mel spectrogram, `(bins, N // hop)`.

    Values are `max(log10(power), loudest - 8) / 4 + 1`, where `loudest` is the largest of the
    sound (Radford et al. 2023, "Robust Speech Recognition via Large-Scale Weak Supervision").

    Args:
        samples_N: at the rate of the encoder, at least `hop`.
        source: what the encoder needs.
    """
    side = source.window // 2
    padded = np.pad(samples_N.astype(np.float64), side, mode="reflect")
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
    scaled_MF: NDArray[np.float32] = features_MF / np.float32(4) + np.float32(1)
    return scaled_MF


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
    filters: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling)) * areas[:, None]
    return filters


def _mel(frequency: float) -> float:
    if frequency < 1000:
        return frequency * 3 / 200
    return 15 + math.log(frequency / 1000) * 27 / math.log(6.4)


def _check_array(sound: NDArray[Any], rate: object) -> NDArray[np.float32]:
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
    _check_size(len(sound), rate, channels, "The sound")
    # a huge double becomes infinite, which is rejected with a better message
    with np.errstate(over="ignore"):
        return _mono((sound.reshape(len(sound), channels) * scale).astype(np.float32))


def _checked_rate(rate: object) -> int:
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise InputError(f"rate must be a number of samples per second (got {shown(rate)}).")
    return rate


def _check_size(samples: int, rate: int, channels: int, name: str) -> None:
    if not 1 <= channels <= limits.MAX_AUDIO_CHANNELS:
        raise InputError(
            f"{name} has {channels} channels; 1 to {limits.MAX_AUDIO_CHANNELS} are read. Pass the "
            "samples as (N, channels), or mix them first."
        )
    if not limits.MIN_AUDIO_RATE <= rate <= limits.MAX_AUDIO_RATE:
        raise InputError(
            f"{name} has {rate} samples per second; {limits.MIN_AUDIO_RATE} to "
            f"{limits.MAX_AUDIO_RATE} are read. Resample it first."
        )
    if samples > rate * limits.MAX_AUDIO_SECONDS:
        raise InputError(
            f"{name} has {samples // rate} seconds, more than {limits.MAX_AUDIO_SECONDS}. Split it."
        )


def _mono(samples_NC: NDArray[np.float32]) -> NDArray[np.float32]:
    return samples_NC[:, 0] if samples_NC.shape[1] == 1 else samples_NC.mean(1)


def _contents(sound: Any) -> tuple[bytes, str]:
    """Return the bytes of a sound file, and a name for errors."""
    if isinstance(sound, bytes):
        data, name = sound, "The sound"
    elif isinstance(sound, str | os.PathLike):
        data, name = _read_file(Path(sound)), os.fspath(sound)
    else:
        raise InputError(
            f"A sound must be a path, the bytes of a file or an array (got {type(sound).__name__})."
        )
    if len(data) > limits.MAX_AUDIO_BYTES:
        raise InputError(f"{name} has more than {limits.MAX_AUDIO_BYTES} bytes. Split it first.")
    return data, name


def _read_file(path: Path) -> bytes:
    try:
        # a pipe or a device may never end
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise InputError(f"{path} {problem}. Check the path of the sound.")
        with path.open("rb") as stream:
            return stream.read(limits.MAX_AUDIO_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{str(path)[:300]!r} cannot be read: {reason}. Check the path of the sound."
        ) from error


def _decode(data: bytes, name: str) -> tuple[NDArray[np.float32], int]:
    """Return samples `(N,)` and their rate."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its library is missing
        raise MissingExtraError(
            f"Reading sound files needs soundfile. Run: {pip_install('audio')}, or pass arrays of "
            "samples"
        ) from error
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS:
                raise InputError(
                    f"{name} has the format {file.format}, which is not among "
                    f"{', '.join(FORMATS)}. Convert it to one of these."
                )
            rate, frames = int(file.samplerate), int(file.frames)
            _check_size(frames, rate, file.channels, name)
            parts, count = [np.zeros(0, np.float32)], 0
            # A header may state fewer samples than follow, or more.
            while count <= frames:
                block_NC = file.read(BLOCK, dtype="float32", always_2d=True)
                if len(block_NC) == 0:
                    break
                parts.append(_mono(block_NC))
                count += len(block_NC)
    except InputError:
        raise
    except Exception as error:  # libsndfile's errors, and those of its wrapper
        raise InputError(
            f"{name} is damaged, or no sound file ({', '.join(FORMATS)}): {str(error)[:200]}. "
            "Copy or convert it again."
        ) from error
    if count != frames or _is_cut(data):
        raise InputError(f"{name} is cut off: its header states more samples. Copy it again.")
    return np.concatenate(parts), rate


def _is_cut(data: bytes) -> bool:
    """Whether a WAV file is shorter than it says, which libsndfile accepts."""
    stated = int.from_bytes(data[4:8], "little")
    # programs that write to a pipe leave the largest number, or none
    return data[:4] == b"RIFF" and 0 < stated < 0xFFFF_FF00 and stated + 8 > len(data) + 1


def _resampled(samples_N: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    resampled: NDArray[np.float32] = _soxr(rate, wanted).resample(samples_N, rate, wanted)
    if len(resampled) == 0:
        raise InputError(f"The sound has less than one sample at {wanted} Hz. Leave it out.")
    return resampled


def _soxr(rate: int, wanted: int) -> Any:
    try:
        import soxr
    except ImportError as error:
        raise MissingExtraError(
            f"Resampling from {rate} to {wanted} Hz needs soxr. Run: {pip_install('audio')}, or "
            f"pass samples at {wanted} Hz"
        ) from error
    return soxr

"""Decodes sound files, block by block.

A sound file is untrusted input: only common formats are decoded. Channels, rate and stated length
are checked before any sample is decoded, and the real length while they are.

Writers that cannot seek back, such as those to a pipe, leave a placeholder where a header has the
length. Such files are read to their end. A file with less sound than it states is cut off.

soundfile is imported here only, for the first file.

Shape letters: N samples, C channels.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.distribution import pip_install
from ortolan.runtime import limits
from ortolan.runtime.errors import InputError, MissingExtraError
from ortolan.runtime.inputs.medium import contents

BLOCK = 1 << 16
"""Samples per channel that are decoded at once to bound memory."""

LEAST_PLACEHOLDER = 2_000_000_000
"""Sizes in WAV and AIFF files from here on, and 0, are those of writers that did not know it: 2e9,
0x7FFFF000 (sox), 0x80000000 (arecord), 0xFFFFFFFF (ffmpeg). Larger files are not read anyway."""

EMPTY_SIZES = {b"data": 0, b"SSND": 8}
"""Parts of WAV and AIFF files with samples, and their sizes without any. A file whose own size ends
there too was written by a program that did not know either."""

MOST_PARTS = 1 << 16
"""Parts of a WAV or AIFF file. Usual files have fewer than ten."""

LARGEST_RATIO = 64
"""More than between any two bit rates of MP3, which are 8 to 448 kbit/s."""

XING = re.compile(rb"(?:Xing|Info)\0\0\0(.)(.{4})(.{4})", re.DOTALL)
"""Flags, frames and bytes of an MP3, in its first frame."""

XING_AT = 64
"""Bytes from the start of an MP3 that the tag with its length ends within."""

FIRST_PAGE, LATER_PAGE = (
    re.compile(rb"OggS\0[%b]" % flags) for flags in (b"\2\3\6\7", b"\0\1\4\5")
)
"""The first page of a stream in an Ogg file, and others."""

LARGEST_FRAMES = 4096
"""More bytes than a frame and a tag have that follow the last of an MP3."""

Blocks = tuple[int, Iterator[NDArray[np.float32]]]
"""Samples per second of a sound, and its samples `(N,)` block by block."""


def open_blocks(sound: Any) -> Blocks:
    """Open a sound file.

    Args:
        sound: a path, or the bytes of a file.
    """
    data, name = contents(sound, "The sound", most=limits.MAX_AUDIO_BYTES, advice="Split it first.")
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its library is missing
        raise MissingExtraError(
            f"Reading sound files needs soundfile. Run: {pip_install('audio')}, or pass arrays of "
            "samples"
        ) from error
    with _library_errors(name):
        file = soundfile.SoundFile(io.BytesIO(data))
        if file.format not in FORMATS:
            raise InputError(
                f"{name} has the format {file.format}, which is not among {', '.join(FORMATS)}. "
                "Convert it to one of these."
            )
        stream, stated = _LENGTHS[file.format](data, name)
        if stream is not None:
            file = soundfile.SoundFile(stream)
        samples = file.frames if stated is None and stream is None else stated
        _check_work(samples or 0, file, name)
    # otherwise the wrapper seeks after each read, which fails at an end that no header states
    file.seekable = lambda: False
    return int(file.samplerate), _blocks(file, samples, name)


def _blocks(file: Any, stated: int | None, name: str) -> Iterator[NDArray[np.float32]]:
    count = 0
    with _library_errors(name), file:
        while len(block_NC := file.read(BLOCK, dtype="float32", always_2d=True)):
            count += len(block_NC)
            _check_work(count, file, name)
            yield mono(block_NC)
    if count < (stated or 0):
        raise _cut(name)


@contextmanager
def _library_errors(name: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # libsndfile's errors, and those of its wrapper
        raise InputError(
            f"{name} is damaged, or no sound file ({', '.join(FORMATS)}): "
            f"{str(getattr(error, 'error_string', error))[:200].rstrip('.')}. Copy or convert it."
        ) from error


def _cut(name: str) -> InputError:
    return InputError(f"{name} is cut off: its header states more samples. Copy it again.")


def _check_work(samples: int, file: Any, name: str) -> None:
    check_size(samples, int(file.samplerate), file.channels, name)
    if samples * file.channels > limits.MAX_AUDIO_SAMPLES:
        raise InputError(
            f"{name} has more than {limits.MAX_AUDIO_SAMPLES} samples over all channels. Resample, "
            "mix or split it."
        )


def check_size(samples: int, rate: int, channels: int, name: str) -> None:
    """Raise InputError unless a sound has few enough channels and samples per channel."""
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


def mono(samples_NC: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of the channels, `(N,)`."""
    return samples_NC[:, 0] if samples_NC.shape[1] == 1 else samples_NC.mean(1)


# --- lengths that headers state -----------------------------------------------------------------

Length = tuple[io.BytesIO | None, int | None]
"""The bytes to decode if they differ from the file, and the samples that its header states."""


def _flac(data: bytes, name: str) -> Length:
    """A FLAC without its number of samples, after which the library would stop."""
    if data[:4] != b"fLaC":
        return None, None
    stated = int.from_bytes(data[21:26], "big") & 0xF_FFFF_FFFF
    return io.BytesIO(data[:21] + bytes([data[21] & 0xF0, 0, 0, 0, 0]) + data[26:]), stated


def _mp3(data: bytes, name: str) -> Length:
    """An MP3 without a tag that states its length.

    The library estimates it from the bit rate of the first frame, and stops there.
    """
    start = 0
    for _ in range(MOST_PARTS):
        if data[start : start + 3] != b"ID3":
            break
        a, b, c, d = data[start + 6 : start + 10]
        start += 10 + (a << 21 | b << 14 | c << 7 | d)
    tag = XING.search(data, start, start + XING_AT)
    flags, frames, size = (0, 0, 0) if tag is None else map(_number, tag.groups())
    if not flags & 1 or frames == 0:
        return _Endless(data), None
    end = start + size
    end += 128 if data[end : end + 3] == b"TAG" else 0
    more = flags & 2 and len(data) > end + LARGEST_FRAMES
    if more and (data[end : end + 3] == b"ID3" or _number(data[end : end + 2]) >= 0xFFE0):
        raise _several(name)
    return None, None


class _Endless(io.BytesIO):
    """The bytes of a file that seems to be longer, so that its end is where reading ends."""

    _is_at_end = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._is_at_end = whence == io.SEEK_END
        return super().seek(offset, whence)

    def tell(self) -> int:
        return super().tell() * (LARGEST_RATIO if self._is_at_end else 1)


def _ogg(data: bytes, name: str) -> Length:
    """An Ogg file, which is whole if its last page is, and a packet ends there."""
    body = LATER_PAGE.search(data)
    if body is not None and FIRST_PAGE.search(data, body.end()):
        raise _several(name)
    at = data.rfind(b"OggS\0")
    header = data[at : at + 27]
    segments = header[26:27]
    lengths = data[at + 27 : at + 27 + sum(segments)]
    end = at + 27 + len(lengths) + sum(lengths)
    is_whole = len(segments) == 1 and len(lengths) == segments[0] and end <= len(data)
    if not is_whole or header[6:14] == b"\xff" * 8:
        raise _cut(name)
    return None, None


def _chunks(data: bytes, name: str) -> Length:
    """A WAV or AIFF file, whose samples are in a part of a stated size."""
    order: Literal["little", "big"] = "little" if data[:4] == b"RIFF" else "big"
    whole, at = int.from_bytes(data[4:8], order), 12
    for _ in range(MOST_PARTS):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], order)
        if kind in EMPTY_SIZES:
            if size < LEAST_PLACEHOLDER and at + 8 + size > len(data):
                raise _cut(name)
            if size == EMPTY_SIZES[kind] and not at < whole < LEAST_PLACEHOLDER:
                return io.BytesIO(data[: at + 4] + b"\xff" * 4 + data[at + 8 :]), None
            return None, None
        at += 8 + size + size % 2
    raise InputError(f"{name} has too many parts. Convert it again.")


def _several(name: str) -> InputError:
    return InputError(
        f"{name} has several sounds, one after another. Convert it to a file with one."
    )


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


_LENGTHS: Mapping[str, Callable[[bytes, str], Length]] = {
    **dict.fromkeys(("AIFF", "WAV", "WAVEX"), _chunks),
    "FLAC": _flac,
    "MP3": _mp3,
    "OGG": _ogg,
}
FORMATS = sorted(_LENGTHS)
"""Formats to decode, as soundfile names them. Others are rare and rarely tested."""

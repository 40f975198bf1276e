import io
import struct
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime import limits
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.errors import MissingExtraError
from ortolan.runtime.inputs.audio import (
    log_mel,
    mel_filters,
    read_blocks,
    read_chunks,
    read_samples,
)

SOURCE = AudioSource(rate=16_000, window=400, hop=160, bins=20, frames=50, vectors=25)
CHUNK = SOURCE.hop * SOURCE.frames


def noise(samples: int = 1001, channels: int = 1) -> NDArray[np.float32]:
    values = np.random.default_rng(0).uniform(-0.9, 0.9, (samples, channels))
    return values.astype(np.float32)


def contents(
    samples: NDArray[Any], kind: str = "WAV", form: str | None = None, rate: int = 16_000
) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=form)
    return stream.getvalue()


def error_of(sound: Any) -> str:
    return refusal(partial(read_samples, sound, SOURCE))


# --- sounds that are read ---------------------------------------------------------------------


def test_a_file_equals_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(contents(noise(), form="FLOAT"))
    for sound in (path, str(path), path.read_bytes(), noise(), noise()[:, 0]):
        np.testing.assert_array_equal(read_samples(sound, SOURCE), noise()[:, 0])


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "FLAC", "AIFF"])
def test_lossless_formats_are_read(kind: str) -> None:
    samples = read_samples(contents(noise(), kind, "PCM_16"), SOURCE)
    np.testing.assert_allclose(samples, noise()[:, 0], atol=1e-4)


@pytest.mark.parametrize("kind", ["OGG", "MP3"])
def test_lossy_formats_are_read(kind: str) -> None:
    tone = (0.5 * np.sin(np.arange(16_000) * 0.1)).astype(np.float32)
    samples = read_samples(contents(tone, kind), SOURCE)
    assert abs(len(samples) - len(tone)) < 2000
    assert float(np.abs(samples).max()) == pytest.approx(0.5, abs=0.1)


def test_channels_are_averaged() -> None:
    samples = noise(channels=3)
    np.testing.assert_allclose(read_samples(samples, SOURCE), samples.mean(1), atol=1e-7)


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_integers_are_scaled(kind: Any) -> None:
    lowest = np.array([np.iinfo(kind).min, 0], kind)
    np.testing.assert_array_equal(read_samples(lowest, SOURCE), [-1.0, 0.0])


def test_another_rate_is_resampled() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    samples = read_samples(tone, SOURCE, rate=8000)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert len(samples) == 16_000
    np.testing.assert_allclose(samples[1000:-1000], expected[1000:-1000], atol=1e-3)
    np.testing.assert_array_equal(
        samples, read_samples(contents(tone, form="DOUBLE", rate=8000), SOURCE)
    )


PLACEHOLDERS = {
    "WAV": [
        *((0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFF024, 0x7FFFF000), (0x80000024, 0x80000000)),
        *((2_000_000_036, 2_000_000_000), (0, 0), (36, 0), (0xFFFFFFFF, 0)),
    ],
    "AIFF": [(0xFFFFFFFF, 0xFFFFFFFF), (0, 0), (0, 8), (0x7FFFFFFF, 0x7FFFFFFF)],
}


@pytest.mark.parametrize(("kind", "sizes"), [(k, s) for k, v in PLACEHOLDERS.items() for s in v])
def test_a_file_whose_writer_did_not_know_its_size_is_read_to_its_end(
    kind: str, sizes: tuple[int, int]
) -> None:
    data = contents(noise(), kind, "PCM_16")
    part, order = (b"data", "<I") if kind == "WAV" else (b"SSND", ">I")
    at = data.index(part) + 4
    whole, own = (struct.pack(order, size) for size in sizes)
    np.testing.assert_array_equal(
        read_samples(data[:4] + whole + data[8:at] + own + data[at + 4 :], SOURCE),
        read_samples(data, SOURCE),
    )


@pytest.mark.parametrize("stated", [0, 500])
def test_a_flac_is_read_to_its_end_whatever_it_states(stated: int) -> None:
    data = contents(noise(), "FLAC", "PCM_16")
    odd = data[:22] + struct.pack(">I", stated) + data[26:]
    np.testing.assert_array_equal(read_samples(odd, SOURCE), read_samples(data, SOURCE))


def mp3(mode: str) -> tuple[bytes, bytes]:
    """The tag with the length, and the rest of an MP3 that is first loud and then silent."""
    samples = noise(48_000) * np.repeat([1.0, 0.01], 24_000)[:, None]
    stream = io.BytesIO()
    soundfile.write(stream, samples, 16_000, format="MP3", bitrate_mode=mode, compression_level=0.3)
    data = stream.getvalue()
    rates = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    first = 72 * rates[data[2] >> 4] * 1000 // 16_000 + (data[2] >> 1 & 1)
    return data[:first], data[first:]


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
def test_an_mp3_that_states_no_length_is_read_to_its_end(mode: str) -> None:
    tag, body = mp3(mode)
    unset = bytearray(tag)
    at = max(tag.find(b"Xing"), tag.find(b"Info"))
    unset[at + 8 : at + 12] = bytes(4)
    tagged = b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + body + b"TAG" + bytes(125)
    assert len(read_samples(tag + body, SOURCE)) == 48_000
    for data in (body, tagged, bytes(unset) + body):
        assert 48_000 <= len(read_samples(data, SOURCE)) < 50_500
    assert "damaged" in error_of(body[:-50])


@pytest.mark.parametrize("kind", ["OGG", "MP3"])
def test_several_sounds_in_a_file_are_rejected(kind: str) -> None:
    data = contents(noise(48_000), kind)
    assert "several sounds" in error_of(data + data)
    if kind == "MP3":
        assert "several sounds" in error_of(data + b"TAG" + bytes(125) + data)


# --- spectrograms -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "chunks"), [(1, 1), (CHUNK, 1), (CHUNK + 160, 2), (3 * CHUNK, 3)]
)
def test_a_sound_has_as_many_chunks_as_it_needs(samples: int, chunks: int) -> None:
    features = read_chunks(noise(samples), SOURCE)
    assert features.shape == (chunks, SOURCE.bins, SOURCE.frames)
    assert features.dtype == np.float32
    assert features.flags.c_contiguous


def test_the_last_chunk_ends_in_zeros_and_a_short_sound_in_silence() -> None:
    frames = 7
    long = read_chunks(noise(CHUNK + frames * SOURCE.hop), SOURCE)
    assert np.all(long[1, :, frames:] == 0)
    assert np.any(long[1, :, :frames] != 0)
    short = read_chunks(noise(frames * SOURCE.hop), SOURCE)
    assert len(np.unique(short[0, :, frames + 2 :])) == 1
    assert short[0, 0, -1] == pytest.approx(short.max() - 2.0, abs=1e-6)


def test_filters_are_those_of_transformers() -> None:
    audio = pytest.importorskip("transformers.audio_utils")
    expected = audio.mel_filter_bank(
        SOURCE.window // 2 + 1,
        SOURCE.bins,
        *(0.0, SOURCE.rate / 2, SOURCE.rate),
        norm="slaney",
        mel_scale="slaney",
    )
    np.testing.assert_allclose(mel_filters(SOURCE), expected.T, atol=1e-12)


def test_blocks_of_frames_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = log_mel(noise(CHUNK)[:, 0], SOURCE)
    monkeypatch.setattr("ortolan.runtime.inputs.audio.FRAMES_AT_ONCE", 7)
    np.testing.assert_allclose(log_mel(noise(CHUNK)[:, 0], SOURCE), whole, atol=1e-6)


# --- sounds that are rejected -----------------------------------------------------------------


def with_sample(value: float) -> NDArray[np.float32]:
    samples = noise()
    samples[500] = value
    return samples


SAMPLES: dict[str, Any] = {
    **{f"{value}": with_sample(value) for value in (np.nan, np.inf, -np.inf, 20_000.0)},
    "a cube": np.zeros((2, 2, 2), np.float32),
    "a scalar": np.asarray(0.5),
    "bytes": np.zeros(9, np.uint8),
    "complex": np.zeros(9, np.complex64),
    "no channels": np.zeros((9, 0), np.float32),
    "channels first": np.zeros((2, 16_000), np.float32),
    "no samples": noise(0),
    "no samples of two channels": np.zeros((0, 2), np.float32),
    "None": None,
}

FILES: dict[str, Any] = {
    "nan in a file": contents(with_sample(np.nan), form="FLOAT"),
    "too loud in a file": contents(with_sample(20_000.0), form="FLOAT"),
    "empty": b"",
    "the start of a header": b"RIFF",
    "a text": b"hello, world" * 99,
    "zeros": bytes(4096),
    "a rare format": contents(noise(), "AU", "PCM_16"),
    "a file without samples": contents(noise(0)),
    "a missing file": "no such file.wav",
    "a folder": ".",
}

RATES: list[Any] = [0, -1, 8000.0, True, "8000", 10**9]

REFUSED: dict[str, Callable[[], object]] = {
    **{name: partial(read_samples, sound, SOURCE) for name, sound in (SAMPLES | FILES).items()},
    **{f"rate = {r!r}": partial(read_samples, noise(), SOURCE, rate=r) for r in RATES},
    "the rate of a file": partial(read_samples, contents(noise()), SOURCE, rate=16_000),
    "the rate of files": lambda: list(read_blocks([contents(noise())], SOURCE, rate=8000)),
    "the rate of blocks": lambda: list(read_blocks([noise()[:, 0]], SOURCE, rate="fast")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_sound_is_rejected(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(REFUSED[name]) == snapshot


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF", "OGG", "MP3"])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_file_that_is_cut_off_is_rejected(kind: str, part: float) -> None:
    data = contents(noise(50_001), kind, None if kind in ("OGG", "MP3") else "PCM_16")
    text = error_of(data[: int(len(data) * part)])
    assert "cut off" in text or "damaged" in text


def test_length_channels_and_rate_are_checked_before_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = contents(noise(channels=2))
    monkeypatch.setattr(soundfile.SoundFile, "read", None)
    monkeypatch.setattr(limits, "MAX_AUDIO_SECONDS", 0)
    assert "more than 0" in error_of(sound)
    monkeypatch.setattr(limits, "MAX_AUDIO_SAMPLES", 2001)
    monkeypatch.setattr(limits, "MAX_AUDIO_SECONDS", 7200)
    assert "more than 2001 samples over all channels" in error_of(sound)
    monkeypatch.setattr(limits, "MAX_AUDIO_CHANNELS", 1)
    assert "2 channels" in error_of(sound)
    assert "100 samples per second" in error_of(contents(noise(), rate=100))
    monkeypatch.setattr(limits, "MAX_AUDIO_BYTES", 10)
    assert "more than 10 bytes" in error_of(sound)


@pytest.mark.parametrize("limit", ["MAX_AUDIO_SECONDS", "MAX_AUDIO_SAMPLES"])
def test_a_length_that_no_header_states_is_bounded_while_decoding(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    data = contents(np.zeros((300_000, 1), np.float32), "FLAC", "PCM_16")
    read = soundfile.SoundFile.read
    blocks: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        blocks.append(len(blocks))
        return read(*args, **options)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    monkeypatch.setattr(limits, limit, 5 if limit == "MAX_AUDIO_SECONDS" else 80_000)
    assert "more than" in error_of(data[:22] + bytes(4) + data[26:])
    assert len(blocks) == 2


def test_a_sound_of_another_rate_is_resampled_while_it_is_decoded() -> None:
    data = contents(np.zeros((384_000 * 20, 1), np.int16), "FLAC", "PCM_16", rate=384_000)
    tracemalloc.start()
    assert len(read_samples(data, SOURCE)) == 320_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # at the rate of the file, 29 MiB


@pytest.mark.parametrize(("module", "rate"), [("soundfile", 16_000), ("soxr", 8000)])
def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, rate: int
) -> None:
    data = contents(noise(), rate=rate)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="audio"):
        read_samples(data, SOURCE)
    assert len(read_samples(noise(), SOURCE)) == 1001


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_blocks_of_another_rate_are_resampled_as_one_sound(rate: int) -> None:
    soxr = pytest.importorskip("soxr")
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 10_000).astype(np.float32)
    blocks = np.array_split(samples, [1, 2, 700, 5000])
    read = np.concatenate([*read_blocks(blocks, SOURCE, rate=rate)])
    whole = soxr.resample(samples, rate, SOURCE.rate)
    assert len(read) == pytest.approx(len(whole), abs=1)
    size = min(len(read), len(whole))
    assert read[:size] == pytest.approx(whole[:size], abs=1e-3)


def test_blocks_of_the_same_rate_stay_as_they_are() -> None:
    samples = np.linspace(-1, 1, 1000, dtype=np.float32)
    blocks = [*read_blocks(np.array_split(samples, 7), SOURCE)]
    assert np.array_equal(np.concatenate(blocks), samples)

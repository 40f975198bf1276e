"""Features of sounds equal those of transformers' feature extractors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray
from tests.runtime.transcription.tiny_wav2vec2 import extractor
from transformers import WhisperFeatureExtractor

from ortolan.export.source.audio_preprocessing import audio_source, wave_source
from ortolan.modeling.config import AudioInput, WaveInput, WaveLayer
from ortolan.runtime.bundle.sources import AudioSource, WaveSource
from ortolan.runtime.inputs.audio import mel_filters, read_chunks, read_wave

SECONDS = 2
RATE = 16_000
HEARD = AudioInput(bins=80, frames=100 * SECONDS)

WAVES = WaveInput(
    layers=tuple(
        WaveLayer(channels=512, kernel=kernel, stride=stride, activation="gelu")
        for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True)
    ),
)
"""The convolutions of wav2vec 2.0."""

WAVE = WaveSource(rate=RATE, window=400, hop=320, vectors=1500, normalized=True)

SOUNDS = [
    # samples, rate, channels, format of soundfile
    (16_000, 16_000, 1, "PCM_16"),
    (1, 16_000, 1, "PCM_16"),
    (159, 16_000, 1, "PCM_16"),
    (7_919, 16_000, 2, "PCM_24"),
    (31_999, 16_000, 1, "FLOAT"),
    (32_000, 16_000, 1, "PCM_U8"),
    (50_001, 16_000, 1, "PCM_32"),
    (101_111, 16_000, 3, "DOUBLE"),
    (44_101, 44_100, 2, "PCM_16"),
    (20_011, 48_000, 1, "PCM_24"),
    (9_001, 8_000, 2, "FLOAT"),
    (70_003, 22_050, 6, "PCM_U8"),
]

every_sound = pytest.mark.parametrize(("samples", "rate", "channels", "form"), SOUNDS)


def write_sound(path: Path, samples: int, rate: int, channels: int, form: str) -> Any:
    """Write tones that glide, with noise, and return their mean at 16 kHz."""
    times = np.arange(samples)[:, None] / rate
    noise = np.random.default_rng(samples).normal(size=(samples, channels))
    tones = np.sin(2 * np.pi * (200 + 300 * times + 90 * np.arange(channels)) * times)
    soundfile.write(path, 0.4 * tones + 0.05 * noise, rate, subtype=form)
    mono = soundfile.read(path, dtype="float32", always_2d=True)[0].mean(1)
    return mono if rate == RATE else soxr.resample(mono, rate, RATE)


def feature_extractor(folder: Path, bins: int) -> WhisperFeatureExtractor:
    extract: Any = WhisperFeatureExtractor
    extracts: WhisperFeatureExtractor = extract(chunk_length=SECONDS, feature_size=bins)
    extracts.save_pretrained(folder)
    return extracts


def expected(
    reference: WhisperFeatureExtractor, samples: NDArray[np.float32], *, exact: bool
) -> NDArray[np.float32]:
    """Features `(bins, frames)` of transformers, padded to whole chunks."""
    size = max(reference.n_samples, len(samples))
    padded = np.pad(samples, (0, size - len(samples)))
    # By NumPy in float64, or by PyTorch in float32.
    if exact:
        features = reference._np_extract_fbank_features(padded[None], "cpu")[0]
    else:
        features = reference._torch_extract_fbank_features(padded[None], "cpu")[0]
    rest = -features.shape[1] % reference.nb_max_frames
    return np.pad(features, ((0, 0), (0, rest)))


@every_sound
@pytest.mark.parametrize("bins", [80, 128])
def test_features_equal_those_of_transformers(
    tmp_path: Path, samples: int, rate: int, channels: int, form: str, bins: int
) -> None:
    reference = feature_extractor(tmp_path, bins)
    source = audio_source(replace(HEARD, bins=bins), tmp_path)
    mono = write_sound(tmp_path / "sound.wav", samples, rate, channels, form)
    ours = np.concatenate(read_chunks(tmp_path / "sound.wav", source), 1)
    np.testing.assert_allclose(ours, expected(reference, mono, exact=True), rtol=0, atol=1e-5)
    # PyTorch's float32 spectrum rounds far below the loudest tone.
    np.testing.assert_allclose(ours, expected(reference, mono, exact=False), rtol=0, atol=1e-3)


@pytest.mark.parametrize("bins", [40, 80, 128])
def test_mel_filters_equal_those_of_transformers(tmp_path: Path, bins: int) -> None:
    reference = feature_extractor(tmp_path, bins)
    source = audio_source(replace(HEARD, bins=bins), tmp_path)
    np.testing.assert_allclose(mel_filters(source), reference.mel_filters.T, rtol=1e-9, atol=1e-12)


def test_without_a_file_the_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    extract: Any = WhisperFeatureExtractor
    default = AudioSource(rate=RATE, window=400, hop=160, bins=80, frames=3000, vectors=1500)
    assert extract().nb_max_frames == default.frames
    assert audio_source(AudioInput(bins=80, frames=3000), tmp_path) == default
    assert wave_source(WAVES, tmp_path, vectors=1500) == WAVE
    assert wave_source(WAVES, None, vectors=1500) == WAVE


# --- waves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
@every_sound
def test_waves_equal_those_of_transformers(
    tmp_path: Path, samples: int, rate: int, channels: int, form: str, normalized: bool
) -> None:
    reference = extractor(tmp_path, do_normalize=normalized)
    source = wave_source(replace(WAVES, layers=WAVES.layers[:1]), tmp_path, vectors=400_000)
    mono = write_sound(tmp_path / "sound.wav", max(samples, 40), rate, channels, form)
    wave = reference(mono, sampling_rate=RATE).input_values[0]
    got = read_wave(tmp_path / "sound.wav", source)
    np.testing.assert_allclose(got, wave, rtol=0, atol=1e-5)


def test_silence_stays_silence() -> None:
    assert not read_wave(np.zeros(4000, np.float32), WAVE).any()


@pytest.mark.parametrize("values", [{}, {"do_normalize": False, "sampling_rate": 8000}])
def test_a_processor_of_newer_checkpoints_is_read(tmp_path: Path, values: dict[str, Any]) -> None:
    extractor(tmp_path, **values)
    old = tmp_path / "preprocessor_config.json"
    source = wave_source(WAVES, tmp_path, vectors=1500)
    nested = {"feature_extractor": json.loads(old.read_text()), "processor_class": "Wav2Vec2"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    old.unlink()
    assert wave_source(WAVES, tmp_path, vectors=1500) == source
    assert source == replace_fields(
        WAVE,
        rate=values.get("sampling_rate", RATE),
        normalized=values.get("do_normalize", True),
    )

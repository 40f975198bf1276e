"""Sounds become the features of transformers, and other settings of preprocessors are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.export.source.test_image_processors import GRID, encoder_of_grids, grid_processor
from tests.refusals import refusal
from tests.runtime.transcription.tiny_wav2vec2 import extractor
from transformers import WhisperFeatureExtractor

from ortolan.export.source.audio_preprocessing import audio_source, wave_source
from ortolan.export.source.image_processor import read_processor
from ortolan.export.source.patches import patch_source
from ortolan.export.source.preprocessing import image_source
from ortolan.export.source.side_file import PREPROCESSOR
from ortolan.export.source.tiles import tiles
from ortolan.modeling.config import AudioInput, PatchInput, WaveInput, WaveLayer
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
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


IMAGES = PatchInput(image_size=(8, 8), patch_size=(4, 4), channels=3, class_token=True)

READERS: dict[str, Callable[[Path], object]] = {
    "vit": lambda folder: image_source(IMAGES, read_processor(IMAGES, folder, "vit")),
    "dinov3": lambda folder: image_source(IMAGES, read_processor(IMAGES, folder, "dinov3_vit")),
    "llava": lambda folder: image_source(IMAGES, read_processor(IMAGES, folder, "llava")),
    "internvl": lambda folder: tiles(read_processor(IMAGES, folder, "internvl"), "internvl"),
    "qwen3_vl": lambda folder: patch_source(encoder_of_grids(), grid_processor(folder)),
    "whisper": lambda folder: audio_source(HEARD, folder),
    "wav2vec2": lambda folder: wave_source(WAVES, folder, vectors=1500),
}

SQUARE = {"height": 8, "width": 8}


def kind(name: str) -> dict[str, Any]:
    return {"image_processor_type": f"{name}ImageProcessor"}


REFUSED: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "vit": (
        {},
        [
            {"size": 9},
            {"size": {"shortest_edge": 8}},
            {"size": {"height": 8, "width": 9}},
            {"do_center_crop": True},
            {"do_center_crop": True, "crop_size": 9},
            {"do_pad": True},
            {"do_pad": True, "pad_size": 9},
            {"do_reduce_labels": True},
            {"crop_pct": 0.9},
            {"do_thumbnail": True, "gamma": 2.0},
            kind("Donut"),
            {"size": {"shortest_edge": 8, "longest_edge": 16}},
            {"size": {"max_height": 8, "max_width": 8}},
            {"size": {"height": 0, "width": 8}},
            kind("ConvNext") | {"size": 8, "crop_pct": 0},
            {"resample": 6},
            {"image_mean": [0.5]},
            {"image_std": [0.5, 0.5, 0]},
            {"rescale_factor": 0},
            {"rescale_factor": "1"},
        ],
    ),
    "dinov3": (
        {"size": SQUARE},
        [
            {"do_center_crop": True, "crop_size": 8},
            {"do_pad": True, "pad_size": 8},
            {"do_rescale": False},
            {"resample": 1},
            {"rescales_first": True},
        ],
    ),
    "llava": (
        {"size": SQUARE},
        [
            kind("GotOcr2") | {"crop_to_patches": True},
            kind("SmolVLM"),
            kind("CLIP") | {"max_patches": 3},
            kind("CLIP") | {"do_image_splitting": True},
            kind("GotOcr2") | {"max_image_size": SQUARE},
        ],
    ),
    "internvl": ({"size": SQUARE, "crop_size": SQUARE}, [kind("CLIP")]),
    "qwen3_vl": (
        GRID,
        [
            {"patch_size": 14},
            {"merge_size": 1},
            {"temporal_patch_size": 1},
            {"size": {"shortest_edge": 500}},
            {"size": {"shortest_edge": 5, "longest_edge": 4}},
            {"size": {"shortest_edge": 1, "longest_edge": 63}},
            {"max_pixels": "many"},
            {"do_resize": False},
            {"max_num_patches": 4},
        ],
    ),
    "whisper": (
        {"chunk_length": SECONDS},
        [
            {"dither": 0.1},
            {"padding_value": 1.0},
            {"do_normalize": True},
            {"preemphasis": 0.97},
            {"feature_size": 128},
            {"chunk_length": 3},
            {"hop_length": 0},
            {"n_fft": "many"},
            {"sampling_rate": 10},
        ],
    ),
    "wav2vec2": (
        {},
        [
            {"feature_size": 80},
            {"do_normalize": "yes"},
            {"sampling_rate": 10},
            {"num_mel_bins": 80},
        ],
    ),
}
"""By reader: usual settings, and changes that are refused."""


@pytest.mark.parametrize(
    ("reader", "changes"),
    [
        pytest.param(name, changes, id=f"{name} {json.dumps(changes)}")
        for name, (_, rows) in REFUSED.items()
        for changes in rows
    ],
)
def test_settings_that_a_bundle_cannot_follow_are_refused(
    reader: str, changes: dict[str, Any], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / PREPROCESSOR).write_text(json.dumps(REFUSED[reader][0] | changes))
    assert refusal(lambda: READERS[reader](tmp_path), tmp_path) == snapshot


DAMAGED = {
    "empty": b"",
    "a list": b"[]",
    "cut short": b"{",
    "no text": b"\xff",
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("contents", DAMAGED)
@pytest.mark.parametrize("reader", ["vit", "whisper", "wav2vec2"])
def test_a_file_that_cannot_be_read_is_refused(
    reader: str, contents: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / PREPROCESSOR).write_bytes(DAMAGED[contents])
    assert refusal(lambda: READERS[reader](tmp_path), tmp_path) == snapshot


@pytest.mark.parametrize("vectors", [1, 400_000])
def test_a_number_of_vectors_that_a_bundle_cannot_hold_is_refused(
    vectors: int, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: wave_source(WAVES, None, vectors=vectors)) == snapshot

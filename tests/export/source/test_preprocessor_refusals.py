"""Settings of preprocessors that a bundle cannot follow, and files that cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.export.source.test_image_processors import GRID, encoder_of_grids
from tests.export.source.test_sounds import HEARD, SECONDS, WAVES
from tests.refusals import refusal

from ortolan.export.source.audio_preprocessing import audio_source, wave_source
from ortolan.export.source.patches import patch_source
from ortolan.export.source.preprocessing import PREPROCESSOR, image_source
from ortolan.export.source.tiles import tiles
from ortolan.modeling.config import PatchInput

IMAGES = PatchInput(image_size=(8, 8), patch_size=(4, 4), channels=3, class_token=True)

READERS: dict[str, Callable[[Path], object]] = {
    "vit": lambda folder: image_source(IMAGES, folder, "vit"),
    "dinov3": lambda folder: image_source(IMAGES, folder, "dinov3_vit"),
    "llava": lambda folder: image_source(IMAGES, folder, "llava"),
    "internvl": lambda folder: tiles(IMAGES, folder, "internvl"),
    "qwen3_vl": lambda folder: patch_source(encoder_of_grids(), folder),
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

"""Patches of images equal those of the image processor of Qwen2-VL, Qwen3-VL and Qwen 3.5."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.export.source.test_image_processors import PICTURES, noise
from tests.tiny.encoders import QWEN3_VL
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ortolan.export.errors import OptionError
from ortolan.export.source.patches import MOST_PATCHES, PROCESSORS, patch_source, size_notes
from ortolan.export.source.preprocessing import PREPROCESSOR
from ortolan.modeling.config import EncoderConfig
from ortolan.modeling.families import family_of
from ortolan.modeling.families.reader import ConfigReader
from ortolan.runtime.bundle.interface import PATCHES
from ortolan.runtime.bundle.sources import PatchSource, WholeSquares
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.source import patch_feeds

KEYS: dict[str, Any] = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 500, "longest_edge": 3000},
}

CASES: dict[str, dict[str, Any]] = {
    "sizes": KEYS,
    "older sizes": KEYS | {"size": None, "min_pixels": 200, "max_pixels": 1500},
    "other numbers": KEYS | {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5] * 3, "resample": 2},
}

SIZES = [(37, 23), (13, 141), (5, 7), (3, 300), (300, 3), (100, 100), (64, 8), (20, 12), (12, 36)]


def config() -> EncoderConfig:
    read = family_of("qwen3_vl").config(ConfigReader(QWEN3_VL))
    assert isinstance(read, EncoderConfig)
    return read


def source(folder: Path, **keys: Any) -> PatchSource:
    """The source of a tiny encoder with the keys of an image processor."""
    (folder / PREPROCESSOR).write_text(json.dumps(keys))
    return patch_source(config(), folder)


@pytest.mark.parametrize("case", CASES)
def test_images_become_the_patches_of_transformers(case: str, tmp_path: Path) -> None:
    keys = {key: value for key, value in CASES[case].items() if value is not None}
    theirs, ours = Qwen2VLImageProcessorPil(**keys), source(tmp_path, **keys)
    images: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        f"{size}": (noise(*size), {}) for size in SIZES
    } | PICTURES
    seen = 0
    for name, (image, options) in images.items():
        path = tmp_path / name.replace(" ", "")
        image.save(path, **{"format": "PNG"} | options)
        opened = ImageOps.exif_transpose(Image.open(path))
        if max(opened.size) > 200 * min(opened.size):
            continue  # transformers refuses these
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(images=opened, return_tensors="np")
        pixels = read_whole(path, ours)
        _, rows, columns = expected["image_grid_thw"][0]
        assert pixels.shape[1:] == (rows * 4, columns * 4), name
        got = patch_feeds(pixels, ours)[PATCHES]
        flat = got.reshape(-1, got.shape[-1])
        np.testing.assert_allclose(flat, expected["pixel_values"], atol=1e-5, err_msg=name)
        seen += 1
    assert seen >= len(SIZES) + 20
    assert size_notes(config(), tmp_path) == ()


def test_defaults_are_those_of_the_class() -> None:
    theirs, ours = Qwen2VLImageProcessorPil(), PROCESSORS["Qwen2VL"]
    for key in ("patch_size", "merge_size", "temporal_patch_size", "resample", "do_convert_rgb"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.size == {key: theirs.size[key] for key in ("shortest_edge", "longest_edge")}
    assert ours.image_mean == tuple(theirs.image_mean)
    assert ours.image_std == tuple(theirs.image_std)


def test_larger_images_than_attention_has_memory_for_are_reduced(tmp_path: Path) -> None:
    published = KEYS | {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
    found = source(tmp_path, **published)
    (note,) = size_notes(config(), tmp_path)
    assert "reduced to 65,536 pixels, where the checkpoint allows 16,777,216" in note
    assert found.patches == MOST_PATCHES
    assert isinstance(found.size, WholeSquares)
    assert found.size.most == MOST_PATCHES * 16
    assert read_whole(np.zeros((2000, 3000, 3), np.uint8), found).shape == (3, 208, 312)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"patch_size": 14}, "patches of 4 pixels and 2 frames"),
        ({"merge_size": 1}, "squares of 2 by 2"),
        ({"temporal_patch_size": 1}, "2 frames"),
        ({"size": {"shortest_edge": 500}}, "shortest_edge and a longest_edge"),
        ({"size": {"shortest_edge": 5, "longest_edge": 4}}, "shortest_edge and a longest_edge"),
        ({"size": {"shortest_edge": 1, "longest_edge": 63}}, "shortest_edge and a longest_edge"),
        ({"max_pixels": "many"}, "int"),
        ({"do_resize": False}, "do_resize true"),
        ({"max_num_patches": 4}, "max_num_patches"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        source(tmp_path, **KEYS | keys)

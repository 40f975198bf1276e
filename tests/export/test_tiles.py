"""How images are cut into tiles and fitted into patches, against transformers."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cases import lfm2_vl_processor, tiles
from tests.cases.contrast import OF_PATCHES, SIZES, image_processor, write_patches
from tests.cases.run import Runs
from tests.refusals import refusal
from tests.tiny.media import picture
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.export.source.image_processor import PROPORTIONAL, Processor, read_processor
from ortolan.export.source.patches import patch_source
from ortolan.export.source.tiles import tiles_of
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.config import EncoderConfig, GridInput
from ortolan.runtime import InputError, TokenizerError, load
from ortolan.runtime.bundle.image_sources import MostPatches, PatchSource, WholeSquares
from ortolan.runtime.bundle.parts import ClosestShape, Oversized, Tiles
from ortolan.runtime.inputs.patches import fitted_size, read_whole
from ortolan.runtime.inputs.tiles import closest, cut

LEVEL = 1.001 / 255 / 0.5
"""A level of a byte, normalized: PyTorch's kernel rounds a few values otherwise than Pillow."""


def case_of(name: str) -> Any:
    """The case of tiles with this name."""
    return next(case for case in tiles.CASES if case.name == name)


def encoder_of(folder: Path) -> tuple[PatchSource, Tiles]:
    """How the images of an LFM2-VL are read."""
    tower = open_checkpoint(folder).media
    assert tower is not None
    config = read_config(tower, EncoderConfig)
    processor = processor_of(config, folder)
    found = tiles_of(config, processor, folder)
    assert isinstance(found, Tiles)
    return patch_source(config, processor), found


def processor_of(config: EncoderConfig, folder: Path) -> Processor:
    assert isinstance(config.input, GridInput)
    return read_processor(config.input, folder, config.model_type)


def patches_of(pixels_CHW: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Pixels as flat patches, as in transformers."""
    channels, height, width = pixels_CHW.shape
    grid = pixels_CHW.reshape(channels, height // size, size, width // size, size)
    return grid.transpose(1, 3, 2, 4, 0).reshape(-1, channels * size**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["idefics3", "internvl", "smolvlm"])
def test_tiles_are_those_of_transformers(name: str, runs: Runs) -> None:
    run = runs(case_of(name))
    encoder, found = run.model._encoder, run.model.manifest.features.tiles
    processor = tiles.image_processor(name, run.checkpoint)
    keys: dict[str, Any] = {"crop_to_patches": True} if name == "internvl" else {}
    keys |= {"return_tensors": "np"} | ({} if keys else {"return_row_col_info": True})
    sides = [(32, 32), (1, 40), (40, 1), (9, 200), (200, 9), (25, 18), (120, 7)]
    for size, channels in itertools.product([*SIZES, *sides], (1, 3, 4)):
        values = picture(*size, channels)
        image = Image.fromarray(values[..., 0] if channels == 1 else values)
        parts = cut(values, encoder.manifest.source, found)
        theirs = processor(image, **keys)
        if name == "internvl":
            expected = theirs["pixel_values"]
            assert theirs["num_patches"] == [parts.rows * parts.columns + 1]
        else:
            expected = theirs["pixel_values"][0]
            assert (parts.rows, parts.columns) == (theirs["rows"][0][0], theirs["cols"][0][0])
        np.testing.assert_allclose(parts.pixels, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("least", "most"), [(1, 12), (1, 1), (2, 7), (1, 40), (6, 6)])
def test_rows_and_columns_are_those_of_transformers(least: int, most: int, runs: Runs) -> None:
    source = runs(case_of("internvl")).model._encoder.manifest.source
    shape = ClosestShape(least=least, most=most)
    sides = [*range(1, 25), 31, 40, 57, 64, 80, 97, 128, 333]
    for size in itertools.product(sides, sides):
        columns, rows = get_optimal_tiled_canvas(size, (source.height, source.width), least, most)
        assert closest(size, (source.height, source.width), shape) == (rows, columns)


@pytest.mark.slow
def test_texts_around_tiles_need_the_tokenizer(runs: Runs) -> None:
    model = load(runs(case_of("smolvlm")).bundle)
    model.tokenizer = None
    with pytest.raises(TokenizerError):
        model.generate([{"image": picture()}, "say"], max_new_tokens=1)


@pytest.mark.slow
def test_sides_and_pixels_are_those_of_lfm2_vl(tmp_path: Path) -> None:
    tiles.write(tmp_path, "lfm2_vl")
    reference = lfm2_vl_processor.ImageProcessor(tmp_path)
    source, found = encoder_of(tmp_path)
    grid = found.grid
    assert isinstance(grid, Oversized)
    for size in SIZES:
        image = picture(*size)
        theirs = reference([Image.fromarray(image)])
        parts = cut(image, source, Tiles(grid=grid))
        shapes = theirs["spatial_shapes"].tolist()
        assert [[side // 2 for side in part.shape[1:]] for part in parts.pixels] == shapes
        assert theirs["image_sizes"][0].tolist() == list(parts.pixels[-1].shape[1:])
        if parts.rows:
            assert (theirs["image_rows"][0], theirs["image_cols"][0]) == (parts.rows, parts.columns)
        for part, padded in zip(parts.pixels, theirs["pixel_values"], strict=True):
            ours = patches_of(part, 2)
            np.testing.assert_allclose(ours, padded[: len(ours)], atol=LEVEL)


# --- images as patches ----------------------------------------------------------------------------


@pytest.mark.slow
def test_patches_are_those_of_transformers(runs: Runs) -> None:
    run = runs(OF_PATCHES)
    processor = image_processor("siglip2").from_pretrained(run.checkpoint)
    for size, channels in itertools.product([*SIZES, (1, 40), (40, 1), (2, 900)], (1, 3, 4)):
        values = picture(*size, channels)
        image = Image.fromarray(values[..., 0] if channels == 1 else values)
        theirs = processor(image, return_tensors="np")
        pixels = run.model.rows.reader.read(values)
        rows, columns = theirs["spatial_shapes"][0].tolist()
        assert pixels.shape == (3, 2 * rows, 2 * columns)
        expected = theirs["pixel_values"][0][: rows * columns]
        np.testing.assert_allclose(patches_of(pixels, 2), expected, atol=1e-5)


def test_narrow_images_have_no_more_patches_than_the_encoder_reads() -> None:
    common: dict[str, Any] = {"channels": 1, "merge": 1, "frames": 1, "mean": (0.0,), "std": (1.0,)}
    common |= {"layout": "channels_last", "scale": 1.0, "resample": "bilinear"}
    source = PatchSource(patch=16, patches=256, size=MostPatches(), **common)
    for size in ((1, 60_000), (60_000, 1), (7000, 9000), (1, 1), (300, 200)):
        height, width = fitted_size(size, source)
        assert 0 < source.length(height, width) <= 256
    squares = WholeSquares(least=65_536, most=262_144)
    source = PatchSource(patch=16, patches=1024, size=squares, **common | {"merge": 2})
    assert fitted_size((100, 100), source) == (256, 256)
    assert fitted_size((640, 480), source) == (576, 416)
    with pytest.raises(InputError, match="too narrow"):
        fitted_size((2, 60_000), source)
    with pytest.raises(InputError, match="too narrow"):
        read_whole(np.zeros((1, 60_000, 1), np.uint8), source)


OTHER_PROCESSORS: dict[str, dict[str, Any]] = {
    "patches": {"patch_size": 4},
    "resample": {"resample": 9},
    "no sizes": {"do_resize": False},
    "height alone": {"size": {"height": 3}},
    "many patches": {"max_num_patches": 1 << 20},
    "one mean": {"image_mean": [0.5]},
    "of another model": {"image_processor_type": "ViTImageProcessor"},
}


def test_other_processors_are_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    write_patches(tmp_path)
    config = read_config(open_checkpoint(tmp_path), EncoderConfig)
    file = tmp_path / "preprocessor_config.json"
    own, found = json.loads(file.read_text()), {}
    for name, keys in OTHER_PROCESSORS.items():
        file.write_text(json.dumps(own | keys))
        found[name] = refusal(
            lambda: patch_source(config, processor_of(config, tmp_path)), tmp_path
        )
    assert found == snapshot


def test_defaults_are_those_of_the_class() -> None:
    theirs, ours = image_processor("siglip2")(), PROPORTIONAL["Siglip2"]
    assert (theirs.patch_size, theirs.max_num_patches) == (ours.patch_size, ours.max_num_patches)
    assert theirs.resample == ours.resample
    assert not theirs.do_convert_rgb


def test_attention_maps_of_any_proportions_are_refused(tmp_path: Path) -> None:
    write_patches(tmp_path)
    with pytest.raises(OptionError, match="any proportions"):
        ortolan.export(tmp_path, tmp_path / "bundle", options=ExportOptions(attention_maps=True))

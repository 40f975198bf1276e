"""Encoders of images that keep their proportions: bundles against transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.export import lfm2_vl_processor, tiny_tiles
from tests.export.tiny_contrast import image_processor
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.encoders import SIGLIP2_VISION
from tests.tiny.media import picture
from transformers import PreTrainedModel

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.export.source.patches import PROCESSORS, patch_source
from ortolan.export.source.tiles import tiles_of
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.config import EncoderConfig
from ortolan.runtime import BundleFileError, Decoder, Encoder, InputError, load, verify
from ortolan.runtime.bundle.parts import Oversized, Tiles
from ortolan.runtime.bundle.sources import MostPatches, PatchSource, WholeSquares
from ortolan.runtime.inputs.patches import fitted_size, read_whole
from ortolan.runtime.inputs.tiles import cut_oversized

pytestmark = pytest.mark.slow

PATCHES = 24

SIZES = [
    (8, 8), (30, 17), (17, 30), (3, 3), (100, 33), (33, 100), (5, 37), (64, 64), (31, 32), (63, 21),
    (9, 50), (50, 9), (1, 1), (19, 19), (400, 300), (2, 5), (29, 30), (16, 24), (24, 16), (13, 29),
]  # fmt: skip
"""Heights and widths of images."""

LEVEL = 1.001 / 255 / 0.5
"""A level of a byte, normalized: PyTorch's kernel rounds a few values otherwise than Pillow."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("siglip2")
    EncoderCase("Siglip2VisionModel", SIGLIP2_VISION | {"vision_use_head": False}).write(folder)
    keys: dict[str, Any] = {"patch_size": 2, "max_num_patches": PATCHES, "do_convert_rgb": True}
    keys |= {"image_processor_type": "Siglip2ImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    ortolan.export(checkpoint, checkpoint / "bundle")
    return checkpoint / "bundle"


@pytest.fixture(scope="module")
def model(bundle: Path) -> Encoder:
    return load(bundle, Encoder, threads=1)


@pytest.fixture(scope="module")
def lfm2_vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lfm2_vl")
    tiny_tiles.write(folder, "lfm2_vl")
    return folder


@pytest.fixture(scope="module")
def reader(lfm2_vl: Path) -> Path:
    ortolan.export(lfm2_vl, lfm2_vl / "bundle")
    return lfm2_vl / "bundle"


def encoder_of(folder: Path) -> tuple[PatchSource, Tiles]:
    """How the images of an LFM2-VL are read."""
    tower = open_checkpoint(folder).media
    assert tower is not None
    config = read_config(tower, EncoderConfig)
    tiles = tiles_of(config, folder)
    assert isinstance(tiles, Tiles)
    return patch_source(config, folder), tiles


def source_of(model: Encoder) -> PatchSource:
    source = model.manifest.source
    assert isinstance(source, PatchSource)
    return source


def patches_of(pixels_CHW: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Pixels as flat patches, as in transformers."""
    channels, height, width = pixels_CHW.shape
    grid = pixels_CHW.reshape(channels, height // size, size, width // size, size)
    return grid.transpose(1, 3, 2, 4, 0).reshape(-1, channels * size**2)


def test_pixels_are_those_of_transformers(model: Encoder, checkpoint: Path) -> None:
    processor = image_processor("siglip2").from_pretrained(checkpoint)
    for size in [*SIZES, (1, 40), (40, 1), (2, 900)]:
        for channels in (1, 3, 4):
            values = picture(*size, channels)
            image = Image.fromarray(values[..., 0] if channels == 1 else values)
            theirs = processor(image, return_tensors="np")
            pixels = model.pixels(values)
            rows, columns = theirs["spatial_shapes"][0].tolist()
            assert pixels.shape == (3, 2 * rows, 2 * columns)
            expected = theirs["pixel_values"][0][: rows * columns]
            np.testing.assert_allclose(patches_of(pixels, 2), expected, atol=1e-5)


def test_vectors_are_those_of_padded_images(model: Encoder, checkpoint: Path) -> None:
    reference: PreTrainedModel = EncoderCase("Siglip2VisionModel", {}).read(checkpoint)
    processor = image_processor("siglip2").from_pretrained(checkpoint)
    images = [picture(*size) for size in SIZES]
    inputs = processor([Image.fromarray(image) for image in images], return_tensors="pt")
    with torch.inference_mode():
        expected = reference(**inputs).last_hidden_state.numpy()
    together = model.states(images)
    for image, states, padded in zip(images, together, expected, strict=True):
        np.testing.assert_allclose(states, padded[: len(states)], atol=1e-4)
        np.testing.assert_array_equal(model.states([image])[0], states)
    assert len({len(states) for states in together}) > 3


@pytest.mark.parametrize(
    ("precision", "least"),
    [("int8", 0.999), ("fp16", 0.9999), ("int4", 0.9)],
)
def test_other_precisions_give_similar_vectors(
    precision: Any, least: float, model: Encoder, checkpoint: Path, tmp_path: Path
) -> None:
    poor = ExportOptions(allow_poor=True)
    ortolan.export(checkpoint, tmp_path / "bundle", precision=precision, options=poor)
    assert verify(tmp_path / "bundle", isolate=False).verdict == "PASS"
    other = load(tmp_path / "bundle", Encoder, threads=1)
    for size in ((30, 17), (5, 37)):
        ours, same = other.states([picture(*size)])[0], model.states([picture(*size)])[0]
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(same, axis=1)
        assert ((ours * same).sum(1) / lengths).mean() > least


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_bit_models_of_images_answer_alike_however_they_are_called(
    precision: Any, lfm2_vl: Path, tmp_path: Path
) -> None:
    poor = ExportOptions(allow_poor=True)
    ortolan.export(lfm2_vl, tmp_path / "bundle", precision=precision, options=poor)
    assert verify(tmp_path / "bundle", isolate=False).verdict == "PASS"
    decoder = load(tmp_path / "bundle", Decoder, threads=1)
    prompts: list[Any] = [[{"image": picture(*size)}, "say"] for size in ((12, 30), (40, 20))]
    alone = [decoder.generate(prompt, max_new_tokens=6).tokens for prompt in prompts]
    again = [decoder.generate(prompt, max_new_tokens=6).tokens for prompt in reversed(prompts)]
    assert again == alone[::-1]


def test_verification_covers_sizes_and_pixels(bundle: Path) -> None:
    report = verify(bundle, isolate=False)
    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.pixels > 0


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("resample",), "bicubic"),
        (("mean",), [0.4, 0.5, 0.5]),
        (("table", "interpolation"), "corners"),
        (("size",), {"by": "whole_squares", "least": 4, "most": 90}),
        (("layout",), "channels_first"),
    ],
)
def test_other_meanings_are_found(
    keys: tuple[str, ...], value: Any, bundle: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    edit_json(out, "manifest.json", put("source", *keys, value=value))
    assert verify(out, isolate=False).verdict == "FAIL"


def test_sides_are_those_of_lfm2_vl(lfm2_vl: Path) -> None:
    reference = lfm2_vl_processor.ImageProcessor(lfm2_vl)
    source, tiles = encoder_of(lfm2_vl)
    grid = tiles.grid
    assert isinstance(grid, Oversized)
    for size in SIZES:
        image = picture(*size)
        theirs = reference([Image.fromarray(image)])
        cut = cut_oversized(image, source, grid, split=True)
        shapes = theirs["spatial_shapes"].tolist()
        assert [[side // 2 for side in part.shape[1:]] for part in cut.pixels] == shapes
        assert theirs["image_sizes"][0].tolist() == list(cut.pixels[-1].shape[1:])
        if cut.rows:
            assert (theirs["image_rows"][0], theirs["image_cols"][0]) == (cut.rows, cut.columns)
        for part, padded in zip(cut.pixels, theirs["pixel_values"], strict=True):
            ours = patches_of(part, 2)
            np.testing.assert_allclose(ours, padded[: len(ours)], atol=LEVEL)


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


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"patch_size": 4}, "patches of 2 pixels"),
        ({"resample": 9}, "resample from 0 to 5"),
        ({"do_resize": False}, "do_resize true"),
        ({"size": {"height": 3}}, "keys of Siglip2ImageProcessor"),
        ({"max_num_patches": 1 << 20}, "patches"),
        ({"image_mean": [0.5]}, "image_mean of 3 numbers"),
        ({"image_processor_type": "ViTImageProcessor"}, "begin with one of"),
    ],
)
def test_other_processors_are_refused(
    keys: dict[str, Any], said: str, checkpoint: Path, tmp_path: Path
) -> None:
    config = read_config(open_checkpoint(checkpoint), EncoderConfig)
    own = json.loads((checkpoint / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(own | keys))
    with pytest.raises(OptionError, match=said):
        patch_source(config, tmp_path)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"use_thumbnail": False}, "use_thumbnail"),
        ({"tile_size": 18}, "multiple of 4"),
        ({"min_tiles": 5}, "in this order"),
        ({"max_tiles": 64, "tile_size": 64}, "at most 8192 vectors"),
    ],
)
def test_other_tiles_of_lfm2_vl_are_refused(
    keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    tiny_tiles.write(tmp_path, "lfm2_vl", **keys)
    with pytest.raises(OptionError, match=said):
        encoder_of(tmp_path)


def test_defaults_are_those_of_the_class() -> None:
    theirs, ours = image_processor("siglip2")(), PROCESSORS["Siglip2"]
    assert (theirs.patch_size, theirs.max_num_patches) == (ours.patch_size, ours.max_num_patches)
    assert theirs.resample == ours.resample
    assert not theirs.do_convert_rgb


def test_a_prefix_cache_tells_sizes_apart(reader: Path) -> None:
    decoder = load(reader, Decoder, threads=1)
    wide, tall = np.zeros((12, 20, 3), np.uint8), np.zeros((20, 12, 3), np.uint8)
    rest: list[Any] = [{"image": picture(40, size)} for size in range(20, 24)]  # over a block
    prompts: list[Any] = [[{"image": image}, *rest, "?"] for image in (wide, tall, wide)]
    alone = [decoder.generate([prompt], max_new_tokens=6)[0].tokens for prompt in prompts]
    with decoder.serve(slots=1) as service:
        done = [service.submit(prompt, max_new_tokens=6).completion() for prompt in prompts]
    assert [completion.tokens for completion in done] == alone
    cached = [completion.timings.cached_tokens for completion in done]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


@pytest.mark.parametrize(
    "grid",
    [
        {"by": "oversized", "pixels": 384, "tile": 10, "least": 2, "most": 4},
        {"by": "oversized", "pixels": 384, "tile": 20, "least": 2, "most": 4},
        {"by": "closest_shape", "least": 2, "most": 4},
    ],
    ids=["no squares", "too large", "of one size"],
)
def test_tiles_need_an_encoder_that_reads_them(
    grid: dict[str, Any], reader: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(reader, tmp_path / "bundle"))
    edit_json(out, "manifest.json", put("images", "tiles", "grid", value=grid))
    with pytest.raises(BundleFileError, match="reads tiles"):
        load(out, isolate=False)


def test_attention_maps_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="any proportions"):
        ortolan.export(checkpoint, tmp_path / "bundle", options=ExportOptions(attention_maps=True))

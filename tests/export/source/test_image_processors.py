"""Pixels of files equal those of transformers' image processors."""

import ast
import importlib
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image, ImageOps
from tests.export import tiny_dinov3
from tests.tiny.encoders import QWEN3_VL
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ortolan.export.source.image_processor import (
    PROCESSOR_OF,
    PROCESSORS,
    PROPORTIONAL,
    Processor,
    read_processor,
)
from ortolan.export.source.patches import MOST_PATCHES, patch_source, size_notes
from ortolan.export.source.preprocessing import image_source
from ortolan.export.source.side_file import PREPROCESSOR, PROCESSOR
from ortolan.export.source.tiles import tiles
from ortolan.modeling.config import EncoderConfig, GridInput, PatchInput
from ortolan.modeling.families import family_of
from ortolan.modeling.families.reader import ConfigReader
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource, WholeSquares
from ortolan.runtime.bundle.parts import Tiles
from ortolan.runtime.bundle.source import PATCHES
from ortolan.runtime.inputs.images import read_pixels
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.readers import patch_feeds
from ortolan.runtime.inputs.tiles import cut

SIDE = 12
SQUARE = {"height": SIDE, "width": SIDE}

IMAGES = PatchInput(image_size=(SIDE, SIDE), patch_size=(4, 4), channels=3, class_token=True)


def noise(height: int, width: int, channels: int = 3) -> Image.Image:
    values = np.random.default_rng(height * width).integers(0, 256, (height, width, channels))
    flat = values[..., 0] if channels == 1 else values
    return Image.fromarray(flat.astype(np.uint8))


def with_clear_color(image: Image.Image) -> tuple[Image.Image, dict[str, Any]]:
    return image.quantize(16), {"transparency": 3}


def turned(orientation: int) -> tuple[Image.Image, dict[str, Any]]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return noise(31, 17), {"exif": exif}


PICTURES: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "rgb": (noise(37, 23), {}),
    "rgb-wide": (noise(13, 41), {}),
    "rgb-small": (noise(5, 7), {}),
    "rgb-same": (noise(SIDE, SIDE), {}),
    "gray": (noise(29, 18, 1), {}),
    "gray-alpha": (noise(20, 27, 2), {}),
    "rgba": (noise(33, 14, 4), {}),
    "palette": (noise(25, 26).quantize(16), {}),
    "palette-clear": with_clear_color(noise(24, 35)),
    "one-bit": (noise(30, 21, 1).convert("1"), {}),
    "16-bit": (Image.fromarray(np.asarray(noise(22, 19, 1)).astype(np.uint16)), {}),
    "32-bit": (Image.fromarray(np.asarray(noise(9, 16, 1)).astype(np.int32)), {"format": "TIFF"}),
    "cmyk": (noise(28, 15).convert("CMYK"), {"format": "TIFF"}),
    "ycbcr": (noise(28, 15), {"format": "JPEG"}),
    "turned-3": turned(3),
    "turned-5": turned(5),
    "turned-6": turned(6),
    "turned-8": turned(8),
    "1xN": (noise(1, 40), {}),
    "Nx1": (noise(40, 1), {}),
    "1x1": (noise(1, 1), {}),
    "huge-aspect": (noise(3, 400), {}),
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {"size": SQUARE}),
    "vit-bicubic": ("ViT", {"size": SQUARE, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    "vit-nearest": ("ViT", {"size": SQUARE, "resample": 0, "do_normalize": False}),
    "vit-box": ("ViT", {"size": SQUARE, "resample": 4, "do_rescale": False}),
    "vit-hamming": ("ViT", {"size": SQUARE, "resample": 5, "rescale_factor": 0.01}),
    "clip": ("CLIP", {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}),
    "clip-border": ("CLIP", {"size": {"shortest_edge": 9}, "crop_size": SQUARE}),
    "clip-margin": ("CLIP", {"size": 15, "crop_size": SIDE, "resample": 2}),
    "clip-crop": ("CLIP", {"do_resize": False, "crop_size": SQUARE}),
    "bit": ("Bit", {"size": {"shortest_edge": 14}, "crop_size": SQUARE, "resample": 1}),
    "deit": ("DeiT", {"size": {"height": 15, "width": 14}, "crop_size": SQUARE}),
    "siglip": ("Siglip", {"size": SQUARE}),
    "siglip-pad": (
        "Siglip",
        {
            "size": {"max_height": SIDE, "max_width": SIDE},
            "do_pad": True,
            "pad_size": SQUARE,
        },
    ),
    "convnext": ("ConvNext", {"size": {"shortest_edge": SIDE}, "crop_pct": 0.8}),
    "convnext-default": ("ConvNext", {"size": {"shortest_edge": SIDE}}),
}


def processor_class(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{name}ImageProcessorPil")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pictures")
    paths = {}
    for name, (image, options) in PICTURES.items():
        paths[name] = folder / name
        stream = io.BytesIO()
        image.save(stream, **{"format": "PNG", **options})
        paths[name].write_bytes(stream.getvalue())
    return paths


def readable(case: str, files: dict[str, Path]) -> Iterator[Path]:
    """The pictures that transformers can read in this case."""
    for name, path in files.items():
        # fitting these inside a square would leave a side of no pixels
        if case != "siglip-pad" or name not in ("1xN", "Nx1", "huge-aspect"):
            yield path


@pytest.mark.parametrize("case", CASES)
def test_files_become_the_pixels_of_transformers(
    case: str, files: dict[str, Path], tmp_path: Path
) -> None:
    name, values = CASES[case]
    theirs = processor_class(name)(**values)
    theirs.save_pretrained(str(tmp_path))
    source = image_source(IMAGES, read_processor(IMAGES, tmp_path, "vit"))
    for path in readable(case, files):
        image = ImageOps.exif_transpose(Image.open(path))
        if not theirs.do_convert_rgb:
            # their arrays of other modes do not have the channels of the model
            image = image.convert("RGB")
        expected = theirs(images=image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(
            read_pixels(path, source), expected, atol=1e-5, rtol=1e-5, err_msg=path.name
        )


DINOV3: dict[str, Any] = {
    "image_processor_type": "DINOv3ViTImageProcessorFast",
    "size": SQUARE,
    "image_mean": list(tiny_dinov3.MEAN),
    "image_std": list(tiny_dinov3.STD),
}


@pytest.mark.parametrize(("resample", "mode"), [(2, "bilinear"), (3, "bicubic")])
def test_files_become_the_pixels_of_floats(
    resample: int, mode: str, files: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / PREPROCESSOR).write_text(json.dumps(DINOV3 | {"resample": resample}))
    source = image_source(IMAGES, read_processor(IMAGES, tmp_path, "dinov3_vit"))
    assert source.rounding == "none"
    for path in files.values():
        image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        expected = tiny_dinov3.normalized(torch.tensor(np.asarray(image)), SIDE, mode=mode)
        np.testing.assert_allclose(
            read_pixels(path, source), expected, atol=1e-5, rtol=1e-5, err_msg=path.name
        )


def test_defaults_are_those_of_a_class_that_needs_torchvision() -> None:
    models = Path(transformers.__file__).parent / "models"
    file = models / "dinov3_vit" / "image_processing_dinov3_vit.py"
    module = ast.parse(file.read_text())
    (kind,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    theirs = {
        node.targets[0].id: ast.unparse(node.value)
        for node in kind.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert theirs == {
        "resample": "PILImageResampling.BILINEAR",
        "image_mean": "IMAGENET_DEFAULT_MEAN",
        "image_std": "IMAGENET_DEFAULT_STD",
        "size": "{'height': 224, 'width': 224}",
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), "True"),
    }
    ours = PROCESSORS["DINOv3ViT"]
    assert (ours.resample, ours.size) == (2, {"height": 224, "width": 224})
    assert ours.image_mean == tuple(IMAGENET_DEFAULT_MEAN)
    assert ours.image_std == tuple(IMAGENET_DEFAULT_STD)


SIZES = {"size": {"longest_edge": 4 * SIDE}, "max_image_size": {"longest_edge": SIDE}}

TILED: dict[str, tuple[str, dict[str, Any]]] = {
    "idefics3": ("Idefics3", SIZES),
    "smolvlm": ("SmolVLM", SIZES),
    "internvl": ("GotOcr2", {"size": SQUARE, "crop_to_patches": True}),
    "internvl, few": ("GotOcr2", {"size": SQUARE, "crop_to_patches": True, "max_patches": 4}),
    "internvl, many": (
        "GotOcr2",
        {"size": SQUARE, "crop_to_patches": True, "min_patches": 3, "max_patches": 40},
    ),
}


@pytest.mark.parametrize("case", TILED)
def test_files_become_the_tiles_of_transformers(
    case: str, files: dict[str, Path], tmp_path: Path
) -> None:
    name, values = TILED[case]
    theirs = processor_class(name)(**values)
    theirs.save_pretrained(str(tmp_path))
    input_ = replace(IMAGES, class_token=False)
    model_type = case.partition(",")[0]
    processor = read_processor(input_, tmp_path, model_type)
    source, how = image_source(input_, processor), tiles(processor, model_type)
    assert isinstance(source, ImageSource)
    assert isinstance(how, Tiles)
    for path in files.values():
        image = ImageOps.exif_transpose(Image.open(path))
        expected = theirs(images=image, return_tensors="np")["pixel_values"]
        expected = expected[0] if expected.ndim == 5 else expected
        np.testing.assert_allclose(
            cut(path, source, how).pixels, expected, atol=1e-5, rtol=1e-5, err_msg=path.name
        )


@pytest.mark.parametrize("name", [name for name in PROCESSORS if name != "DINOv3ViT"])
def test_defaults_are_those_of_the_class(name: str) -> None:
    theirs, ours = processor_class(name)(), PROCESSORS[name]
    sizes = ("size", "crop_size", "max_image_size")
    numbers = ("resample", "rescale_factor", "crop_pct", "min_patches", "max_patches")
    for key in (*sizes, *numbers):
        expected = getattr(theirs, key, None)
        expected = dict(expected) if key in sizes and expected else expected
        assert getattr(ours, key) == expected, key
    for key in (
        "do_resize",
        "do_center_crop",
        "do_rescale",
        "do_normalize",
        "do_pad",
        "do_convert_rgb",
        "do_image_splitting",
        "crop_to_patches",
    ):
        assert bool(getattr(ours, key)) == bool(getattr(theirs, key, False)), key
    for key in ("image_mean", "image_std"):
        np.testing.assert_allclose(np.broadcast_to(getattr(ours, key), 3), getattr(theirs, key))
    assert ours.default_to_square == type(theirs).default_to_square


# --- grids of patches -----------------------------------------------------------------------------

GRID: dict[str, Any] = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 500, "longest_edge": 3000},
}

GRIDS: dict[str, dict[str, Any]] = {
    "sizes": GRID,
    "older sizes": GRID | {"size": None, "min_pixels": 200, "max_pixels": 1500},
    "other numbers": GRID | {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5] * 3, "resample": 2},
}

GRID_SIZES = [(37, 23), (13, 141), (5, 7), (3, 300), (300, 3), (100, 100), (64, 8), (20, 12)]


def encoder_of_grids() -> EncoderConfig:
    read = family_of("qwen3_vl").config(ConfigReader(QWEN3_VL))
    assert isinstance(read, EncoderConfig)
    return read


def grid_processor(folder: Path) -> Processor:
    """The image processor of that encoder."""
    source = encoder_of_grids().input
    assert isinstance(source, GridInput)
    return read_processor(source, folder, "qwen3_vl")


def patches_of(folder: Path, **keys: Any) -> PatchSource:
    """The source of a tiny encoder with the keys of an image processor."""
    (folder / PREPROCESSOR).write_text(json.dumps(keys))
    return patch_source(encoder_of_grids(), grid_processor(folder))


@pytest.mark.parametrize("case", GRIDS)
def test_files_become_the_patches_of_transformers(
    case: str, files: dict[str, Path], tmp_path: Path
) -> None:
    keys = {key: value for key, value in GRIDS[case].items() if value is not None}
    theirs, ours = processor_class("Qwen2VL")(**keys), patches_of(tmp_path, **keys)
    paths = dict(files)
    for size in GRID_SIZES:
        paths[f"{size}"] = tmp_path / f"{size}.png"
        noise(*size).save(paths[f"{size}"])
    for name, path in paths.items():
        image = ImageOps.exif_transpose(Image.open(path))
        if max(image.size) > 200 * min(image.size):
            continue  # transformers refuses these
        expected = theirs(images=image, return_tensors="np")
        pixels = read_whole(path, ours)
        _, rows, columns = expected["image_grid_thw"][0]
        assert pixels.shape[1:] == (rows * 4, columns * 4), name
        got = patch_feeds(pixels, ours)[PATCHES]
        flat = got.reshape(-1, got.shape[-1])
        np.testing.assert_allclose(flat, expected["pixel_values"], atol=1e-5, err_msg=name)
    assert size_notes(encoder_of_grids(), grid_processor(tmp_path)) == ()


def test_defaults_of_grids_are_those_of_the_class() -> None:
    theirs, ours = processor_class("Qwen2VL")(), PROPORTIONAL["Qwen2VL"]
    for key in ("patch_size", "merge_size", "temporal_patch_size", "resample", "do_convert_rgb"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.size == {key: theirs.size[key] for key in ("shortest_edge", "longest_edge")}
    assert (ours.image_mean, ours.image_std) == (tuple(theirs.image_mean), tuple(theirs.image_std))


def test_larger_images_than_attention_has_memory_for_are_reduced(tmp_path: Path) -> None:
    published = GRID | {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
    found = patches_of(tmp_path, **published)
    (note,) = size_notes(encoder_of_grids(), grid_processor(tmp_path))
    assert "reduced to 65,536 pixels, where the checkpoint allows 16,777,216" in note
    assert found.patches == MOST_PATCHES
    assert isinstance(found.size, WholeSquares)
    assert found.size.most == MOST_PATCHES * 16
    assert read_whole(np.zeros((2000, 3000, 3), np.uint8), found).shape == (3, 208, 312)


# --- absent settings ------------------------------------------------------------------------------

VIT = {
    "channels": 3,
    "height": SIDE,
    "width": SIDE,
    "mean": (0.5,) * 3,
    "std": (0.5,) * 3,
    "scale": 1 / 255,
    "resample": "bilinear",
}


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ({}, {}),
        ({"size": SIDE}, {}),
        ({"size": SQUARE, "do_center_crop": False}, {}),
        ({"image_mean": 0.25, "image_std": [1, 2, 3]}, {"mean": (0.25,) * 3, "std": (1, 2, 3)}),
        ({"do_normalize": False}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}),
        ({"do_rescale": False}, {"scale": 1.0}),
        ({"resample": 1}, {"resample": "lanczos"}),
    ],
)
def test_absent_settings_are_those_of_a_vit(
    values: dict[str, object], changes: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / PREPROCESSOR).write_text(json.dumps(values))
    source = image_source(IMAGES, read_processor(IMAGES, tmp_path, "vit"))
    assert {name: getattr(source, name) for name in VIT} == VIT | changes


@pytest.mark.parametrize("kind", ["ImageProcessor", "ImageProcessorFast", "FeatureExtractor"])
def test_older_and_newer_names_of_a_class_are_read(kind: str, tmp_path: Path) -> None:
    key = "feature_extractor_type" if kind == "FeatureExtractor" else "image_processor_type"
    values = {key: f"CLIP{kind}", "size": SIDE, "crop_size": SIDE}
    (tmp_path / PREPROCESSOR).write_text(json.dumps(values))
    direct = image_source(IMAGES, read_processor(IMAGES, tmp_path, "vit"))
    assert (direct.steps.resize, direct.steps.crop) == (SIDE, (SIDE, SIDE))
    (tmp_path / PREPROCESSOR).unlink()
    (tmp_path / PROCESSOR).write_text(json.dumps({"image_processor": values}))
    assert image_source(IMAGES, read_processor(IMAGES, tmp_path, "vit")) == direct


@pytest.mark.parametrize(
    "model_type",
    ["clip", "deit", "dinov2", "dinov3_vit", "idefics3", "internvl", "siglip", "smolvlm"],
)
def test_a_file_that_names_no_processor_has_the_one_that_transformers_chooses(
    model_type: str,
) -> None:
    auto: Any = importlib.import_module("transformers.models.auto.image_processing_auto")
    named = auto.IMAGE_PROCESSOR_MAPPING_NAMES[model_type]
    ours = f"{PROCESSOR_OF[model_type]}ImageProcessor"
    assert named.get("pil", named["torchvision"]) in (ours, f"{ours}Pil")

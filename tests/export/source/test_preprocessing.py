"""Images become the pixels of transformers' image processor."""

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortolan.export.errors import OptionError
from ortolan.export.inputs.tensors import pixels
from ortolan.export.source.preprocessing import PREPROCESSOR, PROCESSOR_OF, image_source
from ortolan.modeling.config import PatchInput
from ortolan.runtime.bundle.sources import ImageSource

INPUT = PatchInput(image_size=(8, 8), patch_size=(4, 4), channels=3, class_token=True)

VIT = {
    "channels": 3,
    "height": 8,
    "width": 8,
    "mean": (0.5,) * 3,
    "std": (0.5,) * 3,
    "scale": 1 / 255,
    "resample": "bilinear",
}


def read(folder: Path, values: dict[str, object]) -> ImageSource:
    (folder / PREPROCESSOR).write_text(json.dumps(values))
    return image_source(INPUT, folder, "vit")


def test_pixels_are_those_of_the_image_processor_of_transformers(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import ViTImageProcessorPil

        theirs: Any = ViTImageProcessorPil(
            size={"height": 8, "width": 8},
            image_mean=[0.4, 0.5, 0.6],
            image_std=[0.1, 0.2, 0.3],
            rescale_factor=1 / 200,
            resample=3,
        )
        theirs.save_pretrained(str(tmp_path))
    takes = image_source(INPUT, tmp_path, "vit")
    assert (takes.mean, takes.std, takes.resample) == ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3), "bicubic")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    expected = theirs(images=list(images), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(pixels(images, takes), expected, atol=1e-5)


@pytest.mark.parametrize(
    "model_type", ["clip", "deit", "dinov2", "idefics3", "internvl", "siglip", "smolvlm"]
)
def test_a_file_that_names_no_processor_has_the_one_that_transformers_chooses(
    model_type: str,
) -> None:
    auto: Any = importlib.import_module("transformers.models.auto.image_processing_auto")
    expected = auto.IMAGE_PROCESSOR_MAPPING_NAMES[model_type]["pil"]
    assert f"{PROCESSOR_OF[model_type]}ImageProcessorPil" == expected


def test_dinov3_has_a_processor_of_floats_only() -> None:
    auto: Any = importlib.import_module("transformers.models.auto.image_processing_auto")
    named = auto.IMAGE_PROCESSOR_MAPPING_NAMES["dinov3_vit"]
    assert named == {"torchvision": f"{PROCESSOR_OF['dinov3_vit']}ImageProcessor"}


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ({}, {}),
        ({"size": 8}, {}),
        ({"size": {"height": 8, "width": 8}, "do_center_crop": False}, {}),
        ({"image_mean": 0.25, "image_std": [1, 2, 3]}, {"mean": (0.25,) * 3, "std": (1, 2, 3)}),
        ({"do_normalize": False}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}),
        ({"do_rescale": False}, {"scale": 1.0}),
        ({"resample": 0}, {"resample": "nearest"}),
        ({"resample": 1}, {"resample": "lanczos"}),
        ({"resample": 4}, {"resample": "box"}),
        ({"resample": 5}, {"resample": "hamming"}),
    ],
)
def test_absent_fields_are_those_of_a_vit(
    values: dict[str, object], changes: dict[str, object], tmp_path: Path
) -> None:
    takes = read(tmp_path, values)
    assert {name: getattr(takes, name) for name in VIT} == VIT | changes


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"size": 9}, "8 x 8 pixels.* 9"),
        ({"size": {"shortest_edge": 8}}, "8 x 8 pixels"),
        ({"size": {"height": 8, "width": 9}}, "8 x 8 pixels"),
        ({"do_center_crop": True}, "crop_size"),
        ({"do_center_crop": True, "crop_size": 9}, "8 x 8 pixels.* 9 x 9"),
        ({"do_pad": True}, "pad_size"),
        ({"do_pad": True, "pad_size": 9}, "pad_size of 8 x 8"),
        ({"do_reduce_labels": True}, "do_reduce_labels"),
        ({"crop_pct": 0.9}, "crop_pct"),
        ({"do_thumbnail": True, "gamma": 2.0}, "do_thumbnail, gamma"),
        ({"image_processor_type": "DonutImageProcessor"}, "DonutImageProcessor"),
        ({"size": {"shortest_edge": 8, "longest_edge": 16}}, "longest_edge"),
        ({"size": {"max_height": 8, "max_width": 8}}, "do_pad"),
        ({"size": {"height": 0, "width": 8}}, "size from 1"),
        ({"size": 8, "image_processor_type": "ConvNextImageProcessor", "crop_pct": 0}, "crop_pct"),
        ({"resample": 6}, "resample from 0 to 5"),
        ({"image_mean": [0.5]}, "image_mean of 3 numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std"),
        ({"rescale_factor": 0}, "rescale_factor"),
        ({"rescale_factor": "1"}, "JSON object"),
    ],
)
def test_steps_that_a_bundle_does_not_do_are_errors(
    values: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=named):
        read(tmp_path, values)


@pytest.mark.parametrize("contents", ["", "[]", "{", "\xff", "[" * 100_000])
def test_a_file_that_cannot_be_read_is_an_error(contents: str, tmp_path: Path) -> None:
    (tmp_path / PREPROCESSOR).write_bytes(contents.encode("latin-1"))
    with pytest.raises(OptionError, match=PREPROCESSOR):
        image_source(INPUT, tmp_path, "vit")

"""Encoders of images of any proportions against Hugging Face transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_encoders import EncoderCase
from tests.modeling.tiny_models import assert_same_logits
from tests.tiny.encoders import SIGLIP2, SIGLIP2_VISION
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import GridInput, GridPositions
from ortolan.modeling.layers.grid import Grid, flat_patches, in_squares, interpolated

GRIDS = [(4, 4), (1, 7), (8, 2), (3, 5), (2, 6)]
"""Rows and columns around the 4 by 4 places of the table, in both directions.

Not a single column: there, PyTorch 2.13 resizes rows wrongly on the CPU."""


def pictures(values: dict[str, Any]) -> list[Tensor]:
    """Pixels `(C, Y, X)` with these grids."""
    generator, size = torch.Generator().manual_seed(0), values["patch_size"]
    return [
        torch.randn(values["num_channels"], rows * size, columns * size, generator=generator)
        for rows, columns in GRIDS
    ]


def padded(images: list[Tensor], size: int, most: int) -> dict[str, Tensor]:
    """The inputs of transformers for images: patches that are padded, and a mask."""
    patches = [
        image.unfold(1, size, size).unfold(2, size, size).permute(1, 2, 3, 4, 0).flatten(2)
        for image in images
    ]
    flat = [patch.flatten(0, 1) for patch in patches]
    return {
        "pixel_values": torch.stack(
            [torch.nn.functional.pad(own, (0, 0, 0, most - len(own))) for own in flat]
        ),
        "pixel_attention_mask": torch.stack(
            [(torch.arange(most) < len(own)).int() for own in flat]
        ),
        "spatial_shapes": torch.tensor([patch.shape[:2] for patch in patches]),
    }


def encoded(model: EncoderModel, pixels: Tensor) -> Tensor:
    source, positions = model.config.input, model.config.positions
    assert isinstance(source, GridInput)
    assert isinstance(positions, GridPositions)
    size = pixels.shape[1] // source.patch_size, pixels.shape[2] // source.patch_size
    grid = Grid.of(size, source.merge, positions)
    out: Tensor = model(flat_patches(pixels, source), grid=grid)
    return out


def both(values: dict[str, Any], folder: Path) -> tuple[PreTrainedModel, EncoderModel]:
    reference = EncoderCase(values["architectures"][0], values).write(folder)
    return reference, load(folder, EncoderModel)


@pytest.mark.parametrize("has_pooling", [True, False])
def test_images_alone_equal_padded_ones(has_pooling: bool, tmp_path: Path) -> None:
    reference, model = both(SIGLIP2_VISION | {"vision_use_head": has_pooling}, tmp_path)
    images = pictures(SIGLIP2_VISION)
    inputs = padded(images, 2, 20)  # more than any image has
    with torch.inference_mode():
        out = reference(**inputs)
        for number, (image, (rows, columns)) in enumerate(zip(images, GRIDS, strict=True)):
            states = out.last_hidden_state[number : number + 1, : rows * columns]
            expected = out.pooler_output[number : number + 1] if has_pooling else states
            assert_same_logits(encoded(model, image), expected)


def test_a_grid_places_its_corners_at_those_of_the_table() -> None:
    corners = GridPositions(side=5, interpolation="corners")
    rows_YS = interpolated(3, corners)
    torch.testing.assert_close(rows_YS, torch.eye(5)[[0, 2, 4]])
    torch.testing.assert_close(interpolated(1, corners), torch.eye(5)[:1])
    places = interpolated(7, corners) @ torch.arange(5.0)
    torch.testing.assert_close(places, torch.linspace(0, 4, 7))


def test_squares_of_patches_stay_together() -> None:
    cells_YXF = torch.arange(24).view(4, 6, 1)
    first, second, *_, last = in_squares(cells_YXF, 2).squeeze(-1).tolist()
    assert (first, second, last) == ([0, 1, 6, 7], [2, 3, 8, 9], [16, 17, 22, 23])


def test_images_of_both_encoders(tmp_path: Path) -> None:
    reference, model = both(SIGLIP2, tmp_path)
    images = pictures(SIGLIP2["vision_config"])
    inputs = padded(images, 2, 16)
    ids = torch.ones(1, 24, dtype=torch.int64)
    with torch.inference_mode():
        expected = reference(input_ids=ids, **inputs).image_embeds
        got = torch.cat([encoded(model, image) for image in images])
    assert_same_logits(got, expected)


def test_classifiers_average_the_patches_of_an_image(tmp_path: Path) -> None:
    values = SIGLIP2 | {"architectures": ["Siglip2ForImageClassification"]}
    reference, model = both(values, tmp_path)
    images = pictures(SIGLIP2["vision_config"])
    with torch.inference_mode():
        expected = reference(**padded(images, 2, 16)).logits
        got = torch.cat([encoded(model, image) for image in images])
    assert_same_logits(got, expected)

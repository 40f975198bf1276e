"""Encoders of images of any proportions, and their language models, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_encoders import EncoderCase
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.encoders import QWEN3_5_VL, QWEN3_VL, SIGLIP2, SIGLIP2_VISION
from torch import Tensor

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.media_tower import media_tower
from ortolan.modeling.checkpoint.text_tower import text_values
from ortolan.modeling.config import EncoderConfig, FeatureHead, GridInput, GridPositions
from ortolan.modeling.layers.cache import StepLengths, empty_cache
from ortolan.modeling.layers.embeddings import Features
from ortolan.modeling.layers.grid import Grid, flat_patches, interpolated
from ortolan.modeling.layers.positions import image_positions


def pixels(grids: list[tuple[int, int]], size: int) -> list[Tensor]:
    """Images `(C, Y, X)` with these rows and columns of patches."""
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(3, rows * size, columns * size, generator=random) for rows, columns in grids
    ]


def encoded(model: EncoderModel, image: Tensor) -> Tensor:
    source, positions = model.config.input, model.config.positions
    assert isinstance(source, GridInput)
    assert isinstance(positions, GridPositions)
    size = image.shape[1] // source.patch_size, image.shape[2] // source.patch_size
    out: Tensor = model(flat_patches(image, source), grid=Grid.of(size, source.merge, positions))
    return out


# --- SigLIP 2 -----------------------------------------------------------------------------------

GRIDS = [(4, 4), (1, 7), (8, 2), (3, 5), (2, 6)]
"""Rows and columns around the 4 by 4 places of the table, in both directions.

Not a single column: there, PyTorch 2.13 resizes rows wrongly on the CPU."""

MOST = 20
"""Patches to which transformers pads; more than any image has."""

SIGLIPS = {
    "pooled": SIGLIP2_VISION,
    "states": SIGLIP2_VISION | {"vision_use_head": False},
    "both encoders": SIGLIP2,
    "classifier": SIGLIP2 | {"architectures": ["Siglip2ForImageClassification"]},
}


def padded(images: list[Tensor]) -> dict[str, Tensor]:
    """The inputs of transformers for images: patches that are padded, and a mask."""
    patches = [
        image.unfold(1, 2, 2).unfold(2, 2, 2).permute(1, 2, 3, 4, 0).flatten(2) for image in images
    ]
    flat = [patch.flatten(0, 1) for patch in patches]
    fill = [(0, 0, 0, MOST - len(own)) for own in flat]
    return {
        "pixel_values": torch.stack(
            [torch.nn.functional.pad(own, end) for own, end in zip(flat, fill, strict=True)]
        ),
        "pixel_attention_mask": torch.stack(
            [(torch.arange(MOST) < len(own)).int() for own in flat]
        ),
        "spatial_shapes": torch.tensor([patch.shape[:2] for patch in patches]),
    }


@pytest.mark.parametrize("name", SIGLIPS)
def test_images_alone_equal_padded_ones(name: str, tmp_path: Path) -> None:
    values = SIGLIPS[name]
    reference = EncoderCase(values["architectures"][0], values).write(tmp_path)
    model, images = load(tmp_path, EncoderModel), pixels(GRIDS, 2)
    text = {"input_ids": torch.ones(1, 24).long()} if name == "both encoders" else {}
    with torch.inference_mode():
        out: Any = reference(**padded(images), **text)
        if name == "states":
            for image, states, (y, x) in zip(images, out.last_hidden_state, GRIDS, strict=True):
                assert_same_logits(encoded(model, image)[0], states[: y * x])
        else:
            part = {"pooled": "pooler_output", "classifier": "logits"}.get(name, "image_embeds")
            got = torch.cat([encoded(model, image) for image in images])
            assert_same_logits(got, getattr(out, part))


def test_a_grid_places_its_corners_at_those_of_the_table() -> None:
    corners = GridPositions(side=5, interpolation="corners")
    torch.testing.assert_close(interpolated(3, corners), torch.eye(5)[[0, 2, 4]])
    torch.testing.assert_close(interpolated(1, corners), torch.eye(5)[:1])
    places = interpolated(7, corners) @ torch.arange(5.0)
    torch.testing.assert_close(places, torch.linspace(0, 4, 7))


# --- Qwen3-VL and Qwen 3.5 ----------------------------------------------------------------------

QWENS = {"qwen3_vl": QWEN3_VL, "qwen3_5": QWEN3_5_VL}

TOKEN = 5

QWEN_GRIDS = [(4, 6), (6, 2), (2, 2), (8, 10)]
"""Rows and columns of patches, around the 6 by 6 places of the table."""


@pytest.mark.parametrize("name", QWENS)
def test_images_in_a_text_are_read_as_by_transformers(name: str, tmp_path: Path) -> None:
    reference: Any = reference_model(QWENS[name], architecture=QWENS[name]["architectures"][0])
    reference.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    encoder, decoder = load(checkpoint.media, EncoderModel), load(checkpoint)
    source = encoder.config.input
    assert isinstance(source, GridInput)
    images = pixels(QWEN_GRIDS, source.patch_size)
    flat = torch.cat([flat_patches(image, source).flatten(0, 1) for image in images])
    sizes = torch.tensor([[1, *size] for size in QWEN_GRIDS])
    grids = [(rows // 2, columns // 2) for rows, columns in QWEN_GRIDS]
    words = [[*[TOKEN] * (rows * columns), 11, 12, 13] for rows, columns in grids]
    ids = torch.tensor([sum(words, [7, 9])])
    with torch.inference_mode():
        vectors = torch.cat([encoded(encoder, image)[0] for image in images])
        out = reference.model.get_image_features(flat, sizes)
        early = getattr(out, "deepstack_features", None) or []
        expected = torch.cat([torch.cat([*part]) for part in (out.pooler_output, *early)], -1)
        assert_same_logits(vectors, expected)
        whole = reference(
            input_ids=ids,
            pixel_values=flat,
            image_grid_thw=sizes,
            mm_token_type_ids=(ids == TOKEN).int(),
        ).logits
        features = Features.of(vectors, ids, TOKEN, grids)
        assert_same_logits(decoder(ids, features), whole)
        plain = features._replace(positions=None)
        assert not torch.allclose(decoder(ids, plain), whole, atol=1e-2)
        text = ids[:, -3:]
        assert_same_logits(decoder(text), reference_logits(reference, text))
        positions = features.positions
        assert positions is not None
        cache = empty_cache(decoder.config, batch=1, capacity=ids.shape[1])
        for start, end in ((0, 4), (4, 9), (9, 10), (10, ids.shape[1])):
            part = Features(features.vectors, features.rows[:, start:end], positions[:, start:end])
            length = torch.tensor(end, dtype=torch.int32)
            step = StepLengths(length[None] - 1, length, end)
            logits, cache = decoder.step(ids[:, start:end], step, cache, features=part)
            assert_same_logits(logits, whole[:, start:end])


def test_positions_go_on_where_the_longer_side_ends() -> None:
    ids = torch.tensor([[9, *[TOKEN] * 6, 8]])
    assert image_positions(ids, TOKEN, [(2, 3)])[0].T.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4],
        [0, 1, 1, 1, 2, 2, 2, 4],
        [0, 1, 2, 3, 1, 2, 3, 4],
    ]
    grids: list[list[tuple[int, int]]] = [[], [(2, 2)], [(2, 3), (1, 1)]]
    for other in grids:
        with pytest.raises(ValueError, match="expected 6 vectors"):
            image_positions(ids, TOKEN, other)


TOWERS = Path(__file__).parents[2] / "data" / "published_towers"

PUBLISHED: dict[str, Any] = json.loads((TOWERS / "Qwen3-VL-4B.json").read_text())


def test_the_published_config_of_qwen3_vl_is_read() -> None:
    tower, text = media_tower(PUBLISHED), text_values(PUBLISHED)
    assert tower is not None
    assert text is not None
    encoder = config_from_hf(tower.values, EncoderConfig)
    assert isinstance(encoder.head, FeatureHead)
    assert encoder.head.early == (6, 12, 18)
    assert encoder.head.width == 4 * 2560
    decoder = config_from_hf(text | tower.text)
    assert decoder.feature_width == encoder.head.width
    assert [block.feature_part for block in decoder.blocks[:5]] == [1, 2, 3, 0, 0]
    (rotary,) = decoder.rotaries
    assert rotary.theta == 5_000_000
    assert [rotary.axes.count(axis) for axis in range(3)] == [24, 20, 20]
    plain = config_from_hf(text)
    assert not plain.has_axes
    assert plain.feature_width == 2560

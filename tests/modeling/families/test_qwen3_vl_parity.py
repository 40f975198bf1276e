"""Qwen3-VL and Qwen 3.5 with images against Hugging Face transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.encoders import QWEN3_5_VL, QWEN3_VL

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.media_tower import media_tower
from ortolan.modeling.checkpoint.text_tower import text_values
from ortolan.modeling.config import (
    EncoderConfig,
    FeatureHead,
    GridInput,
    GridPositions,
    RotaryPositions,
)
from ortolan.modeling.layers.cache import StepLengths, empty_cache
from ortolan.modeling.layers.embeddings import Features
from ortolan.modeling.layers.grid import Grid, flat_patches
from ortolan.modeling.layers.positions import image_positions

CASES = {"qwen3_vl": QWEN3_VL, "qwen3_5": QWEN3_5_VL}

TOKEN = 5

GRIDS = [(4, 6), (6, 2), (2, 2), (8, 10)]
"""Rows and columns of patches, around the 6 by 6 places of the table."""


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of transformers, and its encoder and decoder here."""
    values, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    reference = reference_model(values, architecture=values["architectures"][0])
    reference.save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    return reference, load(checkpoint.media, EncoderModel), load(checkpoint)


def patches(encoder: EncoderModel, seed: int = 0) -> list[torch.Tensor]:
    generator, source = torch.Generator().manual_seed(seed), encoder.config.input
    assert isinstance(source, GridInput)
    size = source.patch_size
    return [
        flat_patches(torch.randn(3, y * size, x * size, generator=generator), source)
        for y, x in GRIDS
    ]


def vectors(encoder: EncoderModel) -> list[torch.Tensor]:
    positions = encoder.config.positions
    assert isinstance(positions, GridPositions)
    return [
        encoder(patch, grid=Grid.of(size, 2, positions))[0]
        for patch, size in zip(patches(encoder), GRIDS, strict=True)
    ]


def question() -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """A text with an image after every few words, and the grids of their vectors."""
    grids = [(rows // 2, columns // 2) for rows, columns in GRIDS]
    ids = [7, 9]
    for rows, columns in grids:
        ids += [*[TOKEN] * (rows * columns), 11, 12, 13]
    return torch.tensor([ids]), grids


def test_vectors_are_those_of_transformers(pair: Any) -> None:
    reference, encoder, _ = pair
    with torch.inference_mode():
        pixels = torch.cat([patch.flatten(0, 1) for patch in patches(encoder)])
        out = reference.model.get_image_features(
            pixels, torch.tensor([[1, *size] for size in GRIDS])
        )
        early = getattr(out, "deepstack_features", None) or []
        expected = torch.cat([torch.cat([*part]) for part in (out.pooler_output, *early)], -1)
        got = torch.cat(vectors(encoder))
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_logits_are_those_of_transformers(pair: Any) -> None:
    reference, encoder, decoder = pair
    ids, grids = question()
    with torch.inference_mode():
        whole = reference(
            input_ids=ids,
            pixel_values=torch.cat([patch.flatten(0, 1) for patch in patches(encoder)]),
            image_grid_thw=torch.tensor([[1, *size] for size in GRIDS]),
            mm_token_type_ids=(ids == TOKEN).int(),
        ).logits
        features = Features.of(torch.cat(vectors(encoder)), ids, TOKEN, grids)
        assert_same_logits(decoder(ids, features), whole)
        plain = features._replace(positions=None)
        assert not torch.allclose(decoder(ids, plain), whole, atol=1e-2)
        text = ids[:, -3:]
        assert_same_logits(decoder(text), reference_logits(reference, text))


def test_steps_equal_the_whole(pair: Any) -> None:
    _, encoder, decoder = pair
    ids, grids = question()
    with torch.inference_mode():
        features = Features.of(torch.cat(vectors(encoder)), ids, TOKEN, grids)
        positions = features.positions
        assert positions is not None
        expected = decoder(ids, features)
        cache = empty_cache(decoder.config, batch=1, capacity=ids.shape[1])
        for start, end in ((0, 4), (4, 9), (9, 10), (10, ids.shape[1])):
            part = Features(features.vectors, features.rows[:, start:end], positions[:, start:end])
            length = torch.tensor(end, dtype=torch.int32)
            step = StepLengths(length[None] - 1, length, end)
            logits, cache = decoder.step(ids[:, start:end], step, cache, features=part)
            assert_same_logits(logits, expected[:, start:end])


def test_positions_go_on_where_the_longer_side_ends() -> None:
    ids = torch.tensor([[9, *[TOKEN] * 6, 8]])
    assert image_positions(ids, TOKEN, [(2, 3)])[0].T.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4],
        [0, 1, 1, 1, 2, 2, 2, 4],
        [0, 1, 2, 3, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize("grids", [[], [(2, 2)], [(2, 3), (1, 1)]])
def test_other_grids_than_those_of_the_text_are_refused(grids: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="expected 6 vectors"):
        image_positions(torch.tensor([[9, *[TOKEN] * 6, 8]]), TOKEN, grids)


def config_with(folder: Path, part: str, **changes: Any) -> None:
    model = reference_model(QWEN3_VL, architecture="Qwen3VLForConditionalGeneration")
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    values[part] |= changes
    (folder / "config.json").write_text(json.dumps(values))


def test_a_published_config_is_read(tmp_path: Path) -> None:
    """With the keys of older versions of transformers."""
    scaling = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config_with(
        tmp_path,
        "text_config",
        rope_parameters=None,
        rope_scaling=scaling,
        rope_theta=5_000_000,
    )
    positions = load(tmp_path).config.positions
    assert isinstance(positions, RotaryPositions)
    assert positions.theta == 5_000_000
    assert positions.axes == (0, 1, 2, 0, 1, 2, 0, 0)


PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2560,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}
"""The config of Qwen3-VL 4B."""


def test_the_config_of_4b_is_read() -> None:
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
    assert [rotary.axes.count(axis) for axis in range(3)] == [24, 20, 20]
    plain = config_from_hf(text)
    assert not plain.has_axes
    assert plain.feature_width == 2560

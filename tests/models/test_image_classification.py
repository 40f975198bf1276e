"""models/digits/image_classification.py: batches, and a training of seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits
from tests.modeling.training.recipes import IMAGE_CLASSIFICATION, task_of, write_recipe
from transformers import AutoModelForImageClassification

from digits.image_classification import normalized
from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.training.trainer import train


def test_pixels_become_channels_from_minus_one_to_one() -> None:
    pixels = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3).astype(np.uint8)
    result = normalized(pixels)
    assert result.shape == (2, 3, 4, 5)
    assert float(result[1, 2, 3, 4]) == pytest.approx(pixels[1, 3, 4, 2] / 127.5 - 1)


def test_the_same_seed_gives_the_same_batches(tmp_path: Path) -> None:
    one, other = (task_of(tmp_path, IMAGE_CLASSIFICATION).batches() for _ in range(2))
    for _ in range(3):
        for mine, theirs in zip(next(one), next(other), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_only_training_images_are_augmented(tmp_path: Path) -> None:
    plain = task_of(tmp_path / "plain", IMAGE_CLASSIFICATION)
    changed = (':read"', ':read"\naugmented = true')
    augmented = task_of(tmp_path / "other", IMAGE_CLASSIFICATION, *changed)
    torch.testing.assert_close(next(augmented.batches())[0], -next(plain.batches())[0])
    augmented.module.load_state_dict(plain.module.state_dict())
    assert augmented.measure() == plain.measure()


def test_a_training_writes_a_checkpoint_that_learned(tmp_path: Path) -> None:
    folder = train(write_recipe(tmp_path, IMAGE_CLASSIFICATION), tmp_path / "out")

    assert {path.name for path in folder.iterdir()} == {
        "calibration.npy",
        "config.json",
        "loss.png",
        "model.safetensors",
        "preprocessor_config.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    assert figures["held_out_accuracy"] > 0.9
    assert figures["images_seen"] == 60 * 32
    assert (figures["train_images"], figures["held_out_images"]) == (200, 40)
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    assert preprocessor["size"] == {"height": 8, "width": 8}
    assert preprocessor["image_mean"] == preprocessor["image_std"] == [0.5] * 3

    module = load(folder, EncoderModel)
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == ("dark", "blue")
    reference = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        assert_same_logits(module(images), reference(images).logits)

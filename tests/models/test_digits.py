"""models/digits: the data, its augmentation, the trained model, and a training of seconds."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits
from tests.modeling.training.recipes import IMAGE_CLASSIFICATION, task_of, write_recipe
from transformers import AutoModelForImageClassification

from digits.data import LABELS, distorted, read
from digits.image_classification import normalized
from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.data import LabelledImages, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.trainer import train

MODEL = Path(__file__).parents[2] / "models" / "digits"


# --- images -------------------------------------------------------------------------------------


def test_every_image_is_on_one_side_of_the_split() -> None:
    from sklearn.datasets import load_digits

    data = read()
    assert (len(data.train.labels), len(data.held_out.labels)) == (1348, 449)
    pixels = np.concatenate([data.train.pixels, data.held_out.pixels]).astype(np.float64)
    images = load_digits().images * 255 / 16
    np.testing.assert_allclose(
        np.sort(pixels.reshape(len(pixels), -1), 0),
        np.sort(images.reshape(len(images), -1), 0),
        atol=0.5,
    )
    assert 0.9 < float(str(data.figures()["logistic_regression_accuracy"])) < 1


def test_the_split_is_the_same_for_the_same_seed() -> None:
    one, same, other = (read(seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.held_out.pixels, same.held_out.pixels)
    np.testing.assert_array_equal(one.held_out.labels, same.held_out.labels)
    assert not np.array_equal(one.held_out.labels, other.held_out.labels)


def test_images_are_bytes_from_no_ink_to_all_ink() -> None:
    data = read()
    assert data.train.pixels.dtype == np.uint8
    assert data.train.pixels.shape[1:] == (8, 8, 1)
    assert (data.train.pixels.min(), data.train.pixels.max()) == (0, 255)
    values = normalized(data.held_out.pixels)
    assert (float(values.min()), float(values.max())) == (-1, 1)


def test_without_scikit_learn_the_digits_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RecipeError, match=r"data\.py: .*sklearn\.datasets"):
        read_data(read_recipe(MODEL / "recipe.toml"), MODEL, LabelledImages)


def test_distorted_images_keep_their_ink_and_differ() -> None:
    images = normalized(read().train.pixels)[:200]
    changed = distorted(images, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    assert not torch.isclose(changed, images, atol=1e-3).all((1, 2, 3)).any()
    assert changed.min() >= -1
    assert changed.max() <= 1 + 1e-6
    # Rotated by a few degrees: most of the ink is near its old place.
    ink, moved = (images + 1).sum((1, 2, 3)), (changed + 1).sum((1, 2, 3))
    assert ((moved / ink - 1).abs() < 0.35).all()
    assert torch.corrcoef(torch.stack((images.flatten(), changed.flatten())))[0, 1] > 0.7


# --- the trained model --------------------------------------------------------------------------


def test_the_trained_model_is_as_accurate_as_its_card_says() -> None:
    images = read_data(read_recipe(MODEL / "recipe.toml"), MODEL, LabelledImages).held_out
    module = load(MODEL, EncoderModel)
    with torch.inference_mode():
        guesses = module(normalized(images.pixels)).argmax(-1).numpy()
    accuracy = float(np.mean(guesses == images.labels))
    figures = json.loads((MODEL / "training.json").read_text())
    assert accuracy == pytest.approx(figures["held_out_accuracy"], abs=0.5 / len(images.labels))
    assert accuracy > max(0.97, figures["logistic_regression_accuracy"])
    assert f"{accuracy:.4f}" in (MODEL / "README.md").read_text()


def test_the_trained_model_equals_transformers() -> None:
    images = normalized(read().held_out.pixels)[:64]
    module = load(MODEL, EncoderModel)
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == LABELS
    reference = AutoModelForImageClassification.from_pretrained(MODEL, dtype=torch.float32)
    with torch.inference_mode():
        assert_same_logits(module(images), reference(images).logits)


def test_transformers_prepares_images_as_training_did() -> None:
    # The one that needs no torchvision.
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    held_out = read().held_out
    processor: Any = ViTImageProcessorPil.from_pretrained(MODEL)
    prepared = processor(
        list(held_out.pixels[:4]),
        input_data_format="channels_last",
        return_tensors="pt",
    )
    torch.testing.assert_close(prepared["pixel_values"], normalized(held_out.pixels)[:4])


# --- training ------------------------------------------------------------------------------------


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

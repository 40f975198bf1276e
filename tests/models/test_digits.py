"""The digits: their split, what is done to them, a training of seconds, and the trained model."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits
from transformers import AutoModelForImageClassification

from digits.data import LABELS, distorted, read
from digits.image_classification import (
    ImageClassificationTask,
    normalized,
)
from ortolan.modeling import ConfigError, EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.data import LabelledImages, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.trainer import train

MODEL = Path(__file__).parents[2] / "models" / "digits"

RECIPE = """
[task]
source = "{task}"

[model]
model_type = "vit"
hidden_size = 32
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
image_size = 8
patch_size = 2
num_channels = 1

[data]
source = "{data}"

[training]
steps = 400
batch_size = 32
learning_rate = 4e-3
warmup_steps = 5
evaluate_every = 200
"""


def write_recipe(folder: Path, old: str = "", new: str = "") -> Path:
    """The recipe, with one change."""
    assert old in RECIPE
    path = folder / "recipe.toml"
    text = RECIPE.replace(old, new) if old else RECIPE
    text = text.replace("{task}", f"{MODEL}/image_classification.py:ImageClassificationTask")
    path.write_text(text.replace("{data}", f"{MODEL}/data.py:read"))
    return path


# --- images -------------------------------------------------------------------------------------


def test_every_image_is_on_one_side_of_the_split() -> None:
    from sklearn.datasets import load_digits

    data = read()
    assert len(data.held_out.labels) == 449
    found = np.concatenate([data.train.pixels, data.held_out.pixels]).astype(np.float64)
    images = load_digits().images * 255 / 16
    # Each in the whole once: the sum and every image of the two sides.
    np.testing.assert_allclose(
        np.sort(found.reshape(len(found), -1), 0),
        np.sort(images.reshape(len(images), -1), 0),
        atol=0.5,
    )


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


def test_without_scikit_learn_the_digits_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RecipeError, match=r"data\.py: .*sklearn\.datasets"):
        read_data(read_recipe(write_recipe(tmp_path)), tmp_path, LabelledImages)


def test_distorted_images_keep_their_ink_and_differ() -> None:
    images = normalized(read().train.pixels)[:200]
    changed = distorted(images, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    assert not torch.isclose(changed, images, atol=1e-3).all((1, 2, 3)).any()
    assert changed.min() >= -1
    assert changed.max() <= 1 + 1e-6
    # Turned by little: most of the ink is near where it was.
    ink, moved = (images + 1).sum((1, 2, 3)), (changed + 1).sum((1, 2, 3))
    assert ((moved / ink - 1).abs() < 0.35).all()
    assert torch.corrcoef(torch.stack((images.flatten(), changed.flatten())))[0, 1] > 0.7


def test_the_same_seed_gives_the_same_batches(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path))
    one, other = (ImageClassificationTask(recipe, tmp_path).batches() for _ in range(2))
    for _ in range(3):
        for mine, theirs in zip(next(one), next(other), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


# --- training -----------------------------------------------------------------------------------


def test_a_training_of_images_writes_a_checkpoint_that_learned(tmp_path: Path) -> None:
    folder = train(write_recipe(tmp_path), tmp_path / "out")

    assert {path.name for path in folder.iterdir()} == {
        "calibration.npy",
        "config.json",
        "loss.png",
        "model.safetensors",
        "preprocessor_config.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    # A guess is right one time in ten.
    assert figures["held_out_accuracy"] > 0.4
    assert figures["images_seen"] == 400 * 32
    assert figures["train_images"] + figures["held_out_images"] == 1797
    assert 0.9 < figures["logistic_regression_accuracy"] < 1

    images = normalized(read().held_out.pixels)[:32]
    module = load(folder, EncoderModel)
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == LABELS
    assert_like_transformers(folder, module, images)


def test_another_number_of_labels_is_an_error_before_any_work(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path, "num_channels = 1", 'num_channels = 1\nid2label = { 0 = "a", 1 = "b" }'
    )
    with pytest.raises(ConfigError, match="10 labels"):
        train(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the trained model --------------------------------------------------------------------------


def test_the_trained_model_reads_the_held_out_digits_as_its_card_says() -> None:
    images = read_data(read_recipe(MODEL / "recipe.toml"), MODEL, LabelledImages).held_out
    module = load(MODEL, EncoderModel)
    with torch.inference_mode():
        guesses = module(normalized(images.pixels)).argmax(-1).numpy()
    accuracy = float(np.mean(guesses == images.labels))
    figures = json.loads((MODEL / "training.json").read_text())
    assert accuracy == pytest.approx(figures["held_out_accuracy"], abs=0.5 / len(images.labels))
    assert accuracy > max(0.97, figures["logistic_regression_accuracy"])
    assert f"{accuracy:.4f}" in (MODEL / "README.md").read_text()


def test_the_trained_model_is_the_same_in_transformers() -> None:
    images = normalized(read().held_out.pixels)[:64]
    assert_like_transformers(MODEL, load(MODEL, EncoderModel), images)


def test_transformers_prepares_an_image_of_the_trained_model_as_training_did() -> None:
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


def assert_like_transformers(folder: Path, module: EncoderModel, images: torch.Tensor) -> None:
    """The same logits from transformers, which reads the folder by itself."""
    reference = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        assert_same_logits(module(images), reference(images).logits)

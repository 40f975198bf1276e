"""Classification of images of one size."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.config import PatchInput
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.transformer import EncoderModel
from ortolan.modeling.training.data import LabelledImages, read_data
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.tasks.labels import classifier_config
from ortolan.modeling.training.tasks.task import Batch, initialise, write_json

MEAN = STD = 0.5
"""Of pixels from 0 to 1: they become -1 to 1."""

BILINEAR = 2
"""Pillow's number."""

PREPROCESSOR: dict[str, object] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "resample": BILINEAR,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}


class ImageClassificationTask:
    """A vision transformer that names the label of an image, measured by its accuracy."""

    module: EncoderModel

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe.training
        self.data = read_data(recipe, folder, LabelledImages)
        config = classifier_config(recipe.model, "ViTForImageClassification", self.data.labels)
        shape = self.data.train.pixels.shape[1:]
        match config.input:
            case PatchInput(image_size=size, channels=channels) if shape != (*size, channels):
                raise RecipeError(
                    f"model: expected image_size and num_channels of the images, {shape}, got "
                    f"{(*size, channels)}. Correct one of them."
                )
        self.module = EncoderModel(config)
        initialise(self.module, layers=len(config.blocks))

    def batches(self) -> Iterator[Batch]:
        """Pixels `(B, C, H, W)`, augmented, and labels `(B,)`, without end."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        images, augment = self.data.train, self.data.augment
        pixels_NCHW, labels = normalized(images.pixels), torch.from_numpy(images.labels)
        while True:
            chosen = torch.randint(len(labels), (self.recipe.batch_size,), generator=generator)
            pixels_BCHW = pixels_NCHW[chosen]
            if augment is not None:
                pixels_BCHW = augment(pixels_BCHW, generator)
            yield pixels_BCHW, labels[chosen]

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the labels."""
        pixels_BCHW, labels = batch
        logits = self.module(pixels_BCHW).float()
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def measure(self) -> dict[str, float]:
        """The accuracy on the held-out images."""
        images = self.data.held_out
        with torch.inference_mode():
            guesses = self.module(normalized(images.pixels)).argmax(-1)
        right = guesses == torch.from_numpy(images.labels)
        return {"held_out_accuracy": float(right.float().mean())}

    def companions(self, folder: Path) -> None:
        """Write how an image becomes pixels."""
        height, width, channels = self.data.train.pixels.shape[1:]
        of_images = {
            "image_mean": [MEAN] * channels,
            "image_std": [STD] * channels,
            "size": {"height": height, "width": width},
        }
        write_json(folder / "preprocessor_config.json", {**PREPROCESSOR, **of_images})

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        return {
            "train_images": len(self.data.train.labels),
            "held_out_images": len(self.data.held_out.labels),
            "images_seen": self.recipe.steps * self.recipe.batch_size,
        }


def normalized(pixels_NHWC: NDArray[np.uint8]) -> Tensor:
    """What the model takes: float32 `(N, C, H, W)` from -1 to 1."""
    return ((torch.from_numpy(pixels_NHWC).float() / 255 - MEAN) / STD).permute(0, 3, 1, 2)

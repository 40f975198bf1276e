"""A training task for the classification of images of one size."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.config import PatchInput
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.training.data import LabelledImages, read_data
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.tasks.task import Batch, Task, initialise
from ortolan.modeling.training.tasks.text_classification import classifier_config

MEAN = STD = 0.5
"""Normalizes pixels from 0 to 1 to -1 to 1."""

BILINEAR = 2
"""Pillow's number of the filter."""

PREPROCESSOR: dict[str, object] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "resample": BILINEAR,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}


class ImageClassificationTask(Task):
    """A vision transformer learns the labels of images; its figure is the accuracy."""

    module: EncoderModel
    data: LabelledImages

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe.training
        self.data = read_data(recipe, folder, LabelledImages)
        config = classifier_config(recipe.model, "ViTForImageClassification", self.data.labels)
        shape = self.data.train.pixels.shape[1:]
        match config.input:
            case PatchInput(image_size=size, channels=channels) if shape != (*size, channels):
                raise RecipeError(
                    f"model: image_size and num_channels must be those of the images, {shape} (got "
                    f"{(*size, channels)})."
                )
        self.module = EncoderModel(config)
        initialise(self.module, layers=len(config.blocks))

    def batches(self) -> Iterator[Batch]:
        """Yield augmented pixels `(B, C, H, W)` and labels `(B,)`."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        images, augment = self.data.train, self.data.augment
        pixels_NCHW, labels = normalized(images.pixels), torch.from_numpy(images.labels)
        while True:
            chosen = torch.randint(len(labels), (self.recipe.batch_size,), generator=generator)
            pixels_BCHW = pixels_NCHW[chosen]
            if augment is not None:
                pixels_BCHW = augment(pixels_BCHW, generator)
            yield pixels_BCHW, labels[chosen]

    def measure(self) -> dict[str, float]:
        """Accuracy on the held-out images."""
        images = self.data.held_out
        with torch.inference_mode():
            guesses = self.module(normalized(images.pixels)).argmax(-1)
        right = guesses == torch.from_numpy(images.labels)
        return {"held_out_accuracy": float(right.float().mean())}

    def companions(self, folder: Path) -> None:
        """Write preprocessor_config.json, which describes how images become pixels."""
        height, width, channels = self.data.train.pixels.shape[1:]
        sizes = {
            "image_mean": [MEAN] * channels,
            "image_std": [STD] * channels,
            "size": {"height": height, "width": width},
        }
        write_json(folder / "preprocessor_config.json", {**PREPROCESSOR, **sizes})

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        return {
            "train_images": len(self.data.train.labels),
            "held_out_images": len(self.data.held_out.labels),
            "images_seen": self.recipe.steps * self.recipe.batch_size,
        }


def normalized(pixels_NHWC: NDArray[np.uint8]) -> Tensor:
    """Pixels as the model expects them: float32 `(N, C, H, W)` from -1 to 1."""
    return ((torch.from_numpy(pixels_NHWC).float() / 255 - MEAN) / STD).permute(0, 3, 1, 2)

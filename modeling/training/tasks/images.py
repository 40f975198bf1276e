"""Classification of small grey images.

Knows pixels and labels. Does not know where the images come from.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderConfig
from ortolan.modeling.models.transformer import Encoder
from ortolan.modeling.training.corpora.digits import LABELS, LabelledImages, read_digits
from ortolan.modeling.training.recipe import DigitsData, Recipe
from ortolan.modeling.training.tasks.labels import check_labels, label_keys
from ortolan.modeling.training.tasks.task import Batch, initialise, write_json

MEAN = STD = 0.5
"""Of the pixels, from 0 to 1: they become -1 to 1."""

BILINEAR = 2
"""Pillow's number; the mean over an area made the scans, but torchvision's tensors lack it."""

PREPROCESSOR: dict[str, object] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "resample": BILINEAR,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [MEAN],
    "image_std": [STD],
}

MOST_DEGREES, MOST_SHIFT, MOST_SCALE = 12.0, 0.8, 0.1
"""How far images to learn from are turned, moved (in pixels) and made smaller or larger."""


class ImagesTask:
    """A vision transformer that names digits, measured by its accuracy.

    Args:
        recipe: what to train.
        data: its images.
    """

    module: Encoder

    def __init__(self, recipe: Recipe, data: DigitsData) -> None:
        self.recipe = recipe.training
        architecture = "ViTForImageClassification"
        config = config_from_hf({**label_keys(architecture, LABELS), **recipe.model}, EncoderConfig)
        check_labels(config, LABELS)
        self.digits = read_digits(data)
        self.module = Encoder(config)
        initialise(self.module, layers=len(config.blocks))

    def batches(self) -> Iterator[Batch]:
        """Pixels `(B, 1, Y, X)`, each a little distorted, and labels `(B,)`, without end."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        images = self.digits.train
        pixels_N1YX, labels = pixels(images), torch.from_numpy(images.labels)
        while True:
            chosen = torch.randint(len(labels), (self.recipe.batch_size,), generator=generator)
            yield distorted(pixels_N1YX[chosen], generator), labels[chosen]

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the labels."""
        pixels_B1YX, labels = batch
        logits = self.module(pixels_B1YX).float()
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def measure(self) -> dict[str, float]:
        """The accuracy on the held-out images."""
        images = self.digits.held_out
        with torch.inference_mode():
            guesses = self.module(pixels(images)).argmax(-1)
        right = guesses == torch.from_numpy(images.labels)
        return {"held_out_accuracy": float(right.float().mean())}

    def companions(self, folder: Path) -> None:
        """Write how an image becomes pixels."""
        height, width = self.digits.train.pixels.shape[1:]
        size = {"height": height, "width": width}
        write_json(folder / "preprocessor_config.json", {**PREPROCESSOR, "size": size})

    def figures(self) -> dict[str, object]:
        """Sizes of the data, and what logistic regression reaches on them."""
        from ortolan.modeling.training.baselines import logistic_regression_on_pixels

        return {
            "train_images": len(self.digits.train.labels),
            "held_out_images": len(self.digits.held_out.labels),
            "images_seen": self.recipe.steps * self.recipe.batch_size,
            "logistic_regression_accuracy": logistic_regression_on_pixels(self.digits),
        }


def pixels(images: LabelledImages) -> Tensor:
    """What the model takes: float32 `(N, 1, Y, X)` from -1 to 1."""
    return ((torch.from_numpy(images.pixels).float() / 255 - MEAN) / STD)[:, None]


def distorted(pixels_B1YX: Tensor, generator: torch.Generator) -> Tensor:
    """Images turned, moved and scaled, each by another random amount; empty at the edges."""
    batch, _, height, width = pixels_B1YX.shape
    angle, scale, right, down = torch.rand(4, batch, generator=generator) * 2 - 1
    angle = angle * math.radians(MOST_DEGREES)
    scale = 1 + scale * MOST_SCALE
    # The grid runs from -1 to 1, so that a pixel is 2 / width of it.
    right, down = right * MOST_SHIFT * 2 / width, down * MOST_SHIFT * 2 / height
    rows = [
        torch.stack((angle.cos() * scale, -angle.sin() * scale, right), -1),
        torch.stack((angle.sin() * scale, angle.cos() * scale, down), -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [batch, 1, height, width], align_corners=False)
    # What lies outside reads as 0, which has to mean no ink.
    ink = F.grid_sample((pixels_B1YX + 1) / 2, grid, align_corners=False)
    return ink * 2 - 1

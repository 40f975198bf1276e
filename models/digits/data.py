"""Handwritten digits of 8 x 8 pixels (1797 scans, Alpaydin and Kaynak), from scikit-learn."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ortolan.modeling.training import Images, LabelledImages

LABELS = tuple("0123456789")

DARKEST = 16
"""Largest value of a scan: the number of black points of 4 x 4."""

MOST_DEGREES, MOST_SHIFT, MOST_SCALE = 12.0, 0.8, 0.1
"""Limits of augmentation: rotation, shift in pixels, and change of scale."""


def read(*, held_out: float = 0.25, seed: int = 0) -> LabelledImages:
    """Read the scans as bytes, from 0 without ink to 255."""
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / DARKEST)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    count = round(len(labels) * held_out)
    measured, train = (
        Images(pixels=pixels[rows], labels=labels[rows])
        for rows in (np.sort(order[:count]), np.sort(order[count:]))
    )
    return LabelledImages(
        labels=LABELS,
        train=train,
        held_out=measured,
        augment=distorted,
        figures=lambda: {"logistic_regression_accuracy": logistic_regression(train, measured)},
    )


def distorted(pixels_B1YX: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate, shift and scale each image at random; the edges are filled with no ink."""
    batch, _, height, width = pixels_B1YX.shape
    angle, scale, right, down = torch.rand(4, batch, generator=generator) * 2 - 1
    angle = angle * math.radians(MOST_DEGREES)
    scale = 1 + scale * MOST_SCALE
    # The grid runs from -1 to 1, so a pixel measures 2 / width.
    right, down = right * MOST_SHIFT * 2 / width, down * MOST_SHIFT * 2 / height
    rows = [
        torch.stack((angle.cos() * scale, -angle.sin() * scale, right), -1),
        torch.stack((angle.sin() * scale, angle.cos() * scale, down), -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [batch, 1, height, width], align_corners=False)
    # Places outside of the image read as 0, which must mean no ink.
    ink = F.grid_sample((pixels_B1YX + 1) / 2, grid, align_corners=False)
    return ink * 2 - 1


def logistic_regression(train: Images, held_out: Images) -> float:
    """Baseline: accuracy of multinomial logistic regression on scaled pixels."""
    inputs = [part.pixels.reshape(len(part), -1).astype(np.float64) for part in (train, held_out)]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(inputs[0], train.labels)
    return float(np.mean(model.predict(inputs[1]) == held_out.labels))

"""Handwritten digits of 8 x 8 pixels, which scikit-learn brings (1797 scans, Alpaydin and Kaynak).

Knows the images and their split. Does not know how a model reads them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import DigitsData

LABELS = tuple("0123456789")

DARKEST = 16
"""The largest value of a scan: the inked ones of 4 x 4 points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """Images, and which of `LABELS` each of them shows.

    Attributes:
        pixels: uint8 `(N, 8, 8)`, 0 where there is no ink and 255 where all is ink.
        labels: int64 `(N,)`.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images to learn from and images to measure on."""

    train: LabelledImages
    held_out: LabelledImages


def read_digits(data: DigitsData) -> Digits:
    """The images as bytes, split by a seeded shuffle of their numbers in the data set.

    Raises:
        RecipeError: scikit-learn is absent.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"data: expected the package scikit-learn, which has the digits, got no {error.name}. "
            'Run: pip install "ortolan[train]"'
        ) from error
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / DARKEST)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(data.seed).permutation(len(labels))
    count = round(len(labels) * data.held_out)
    held_out, train = np.sort(order[:count]), np.sort(order[count:])
    return Digits(
        train=LabelledImages(pixels=pixels[train], labels=labels[train]),
        held_out=LabelledImages(pixels=pixels[held_out], labels=labels[held_out]),
    )

"""Training data: the kinds of it, and how a recipe's own function is called to read it.

    [data]
    source = "data.py:read"
    exclude = ["test/*"]

calls the function `read` of `data.py` next to the recipe; the other keys are its arguments. It
returns one of the classes below:

    def read(*, exclude: tuple[str, ...] = ()) -> Texts: ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.source import arguments_of, named_object

Figures = Callable[[], Mapping[str, object]]
"""Additional figures for training.json, such as a baseline's; computed once, at the end."""

Pair = tuple[str, str]
"""A sentence and its translation, or a prompt and its answer."""

Metric = Callable[[Sequence[str], Sequence[str]], float]
"""Scores translations against their references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Documents."""

    train: Sequence[str]
    held_out: Sequence[str]
    figures: Figures = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Texts with the index of their label.

    Attributes:
        labels: names of the labels.
        unlabelled: texts that a new tokenizer is trained on; the texts of `train` if empty.
    """

    labels: tuple[str, ...]
    train: Sequence[tuple[str, int]]
    held_out: Sequence[tuple[str, int]]
    unlabelled: Sequence[str] = ()
    figures: Figures = dict

    def __post_init__(self) -> None:
        for part in (self.train, self.held_out):
            _check_labels({label for _, label in part}, self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images with the index of their label.

    Attributes:
        pixels: uint8 `(N, H, W, C)`.
        labels: int64 `(N,)`.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or labels.shape != pixels.shape[:1]:
            raise RecipeError(
                "data: pixels must be uint8 (N, H, W, C) with N labels (got "
                f"{pixels.dtype} {pixels.shape} and {labels.shape})."
            )

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """Images of one size.

    Attributes:
        labels: names of the labels.
        augment: random change of training images, float32 `(B, C, H, W)` from -1 to 1.
    """

    labels: tuple[str, ...]
    train: Images
    held_out: Images
    augment: Callable[[Tensor, Generator], Tensor] | None = None
    figures: Figures = dict

    def __post_init__(self) -> None:
        for part in (self.train, self.held_out):
            _check_labels(set(part.labels.tolist()), self.labels)


def _check_labels(labels: set[int], names: Sequence[str]) -> None:
    wrong = sorted(label for label in labels if label not in range(len(names)))
    if wrong:
        raise RecipeError(
            f"data: labels must be from 0 to {len(names) - 1} (got {wrong[0]}). A label is an "
            "index into the names of the labels."
        )


def equal_share(translations: Sequence[str], references: Sequence[str]) -> float:
    """Share of translations that equal their reference exactly."""
    equal = sum(text == reference for text, reference in zip(translations, references, strict=True))
    return equal / len(references)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Sentences and their translations.

    Attributes:
        held_out: sets to measure on, by name.
        metrics: scores by name; the first one, on the first set, is plotted.
    """

    train: Sequence[Pair]
    held_out: Mapping[str, Sequence[Pair]]
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"equal": equal_share})
    figures: Figures = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Prompts and their answers; whitespace separates tokens.

    Attributes:
        held_out: sets to measure on, by name; the first is plotted.
    """

    train: Sequence[Pair]
    held_out: Mapping[str, Sequence[Pair]]
    figures: Figures = dict


Data = Texts | LabelledTexts | LabelledImages | Pairs | Answers

D = TypeVar("D", Texts, LabelledTexts, LabelledImages, Pairs, Answers)


def read_data(recipe: Recipe, folder: Path, kind: type[D]) -> D:
    """Call the function that a recipe names.

    Args:
        recipe: the recipe.
        folder: the folder of the recipe.
        kind: class that the task learns from.
    """
    options = dict(recipe.data)
    source = options.pop("source", None)
    function = named_object(source, folder, "data")
    data = function(**arguments_of(function, options, "data"))
    if not isinstance(data, kind):
        raise RecipeError(
            f"data.source: the task learns from {kind.__name__}, but {source} returned "
            f"{type(data).__name__}. Correct the function, or the task."
        )
    if not len(data.train) or not len(data.held_out):
        raise RecipeError(
            f"data: {source} returned {len(data.train)} items to learn from and "
            f"{len(data.held_out)} to measure on; both are needed. Check the keys of the table."
        )
    return data

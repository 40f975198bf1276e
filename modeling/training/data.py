"""What a recipe learns from: the kinds of data, and the user's own function that reads them.

    [data]
    source = "data.py:read"
    exclude = ["test/*"]

names the function `read` in the file `data.py` beside the recipe. It is called with the other keys
of the table, which are checked against the annotations of its parameters, and returns one of the
classes below:

    def read(*, exclude: tuple[str, ...] = ()) -> Texts: ...

The file may import its neighbours (`from .grammar import sentences`) and any installed package.
"""

import importlib
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import Recipe

Figures = Callable[[], Mapping[str, object]]
"""More figures for training.json, such as those of a baseline; computed once, at the end."""

Pair = tuple[str, str]
"""A sentence and its translation, or a prompt and its answer."""

Metric = Callable[[Sequence[str], Sequence[str]], float]
"""How good translations are, given their references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Documents to learn from and documents to measure on."""

    train: Sequence[str]
    held_out: Sequence[str]
    figures: Figures = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Texts, each with the index of its label.

    Attributes:
        labels: their names.
        unlabelled: what a new tokenizer is trained on; the texts of `train` if empty.
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
    """Images, and the index of the label of each.

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
                "data: expected pixels as bytes (N, H, W, C) and N labels, got "
                f"{pixels.dtype} {pixels.shape} and {labels.shape}. Correct what read the images."
            )

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """Images of one size.

    Attributes:
        labels: their names.
        augment: changes images to learn from, float32 `(B, C, H, W)` from -1 to 1, at random.
    """

    labels: tuple[str, ...]
    train: Images
    held_out: Images
    augment: Callable[[Tensor, Generator], Tensor] | None = None
    figures: Figures = dict

    def __post_init__(self) -> None:
        for part in (self.train, self.held_out):
            _check_labels(set(part.labels.tolist()), self.labels)


def _check_labels(found: set[int], labels: Sequence[str]) -> None:
    wrong = sorted(label for label in found if label not in range(len(labels)))
    if wrong:
        raise RecipeError(
            f"data: expected labels from 0 to {len(labels) - 1}, got {wrong[0]}. "
            "A label is an index into the names of the labels."
        )


def equal_share(translated: Sequence[str], references: Sequence[str]) -> float:
    """The part of the translations that equals the reference, letter by letter."""
    equal = sum(mine == theirs for mine, theirs in zip(translated, references, strict=True))
    return equal / len(references)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Sentences and their translations.

    Attributes:
        held_out: sets to measure on, by name.
        metrics: what is measured on each of them, by name; the first, on the first set, is drawn.
    """

    train: Sequence[Pair]
    held_out: Mapping[str, Sequence[Pair]]
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"equal": equal_share})
    figures: Figures = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Prompts and their answers; tokens are what stands between spaces.

    Attributes:
        held_out: sets to measure on, by name; the first is drawn.
    """

    train: Sequence[Pair]
    held_out: Mapping[str, Sequence[Pair]]
    figures: Figures = dict


Data = Texts | LabelledTexts | LabelledImages | Pairs | Answers

D = TypeVar("D", Texts, LabelledTexts, LabelledImages, Pairs, Answers)

_NUMBERS = itertools.count()


def read_data(recipe: Recipe, folder: Path, kind: type[D]) -> D:
    """Call the function that a recipe names.

    Args:
        recipe: the recipe.
        folder: where it lies.
        kind: what its task learns from.

    Raises:
        RecipeError: there is no such function, its parameters are not the keys of the recipe, or it
            returns something else or nothing to learn from or to measure on.
    """
    options = dict(recipe.data)
    source = options.pop("source", None)
    file, _, name = source.rpartition(":") if isinstance(source, str) else ("", "", "")
    if not (file.endswith(".py") and name.isidentifier()):
        raise RecipeError(
            f"data.source: expected a file and a function in it, such as 'data.py:read', got "
            f"{source!r}. Correct it."
        )
    function = getattr(_module(folder / file), name, None)
    if not callable(function):
        raise RecipeError(
            f"data.source: expected a function {name} in {folder / file}, got none. Write it."
        )
    data = function(**_arguments(function, options))
    if not isinstance(data, kind):
        raise RecipeError(
            f"data.source: expected {kind.__name__} from {source}, which the task learns from, got "
            f"{type(data).__name__}. Return it, or correct task.name."
        )
    if not len(data.train) or not len(data.held_out):
        raise RecipeError(
            f"data: expected from {source} something to learn from and something to measure on, "
            f"got {len(data.train)} and {len(data.held_out)}. Check the keys of the table."
        )
    return data


def _module(path: Path) -> types.ModuleType:
    """A file as a module of a package of its own, so that it can import its neighbours."""
    if not path.is_file():
        raise RecipeError(
            f"data.source: expected a file {path}, got none. Write it, or correct the name."
        )
    package = types.ModuleType(f"_ortolan_recipe_{next(_NUMBERS)}")
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package.__name__}.{path.stem}")
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"{path}: expected the package {error.name}, which it imports, got none. Install it."
        ) from error


def _arguments(function: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function, of the types of its annotations.

    Raises:
        RecipeError: one is unknown, missing or of the wrong type.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    fields = [
        (name, hints.get(name, Any))
        if parameter.default is parameter.empty
        else (name, hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
    table = msgspec.defstruct("data", fields, kw_only=True, forbid_unknown_fields=True)
    try:
        return msgspec.structs.asdict(msgspec.convert(options, table))
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"data: expected the arguments of {function.__name__}(), got {error}. "
            "Correct the table, or the function."
        ) from error

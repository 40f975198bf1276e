"""Weights that a graph reads in another form than the checkpoint stores them.

A pass that joins rows, swaps axes or adds a number gives the new initializer a recipe. Nothing is
computed until the rows are read.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.values import add_initializer, static_shape, type_of
from ortolan.modeling.weights import (
    READ_ELEMENTS,
    Coded,
    CodedRows,
    CodeFormat,
    Weights,
    join_codes,
    joint_format,
)

_KEY = "ortolan.recipes"
"""Metadata key of an initializer's recipes, those of its parts included; never written to files."""


class Recipe(NamedTuple):
    """How to compute a weight from others.

    Attributes:
        parts: names of the weights whose rows are joined; a part may have a recipe itself.
        transposed: swap the two axes of every part first.
        offset: added to every element.
    """

    parts: tuple[str, ...]
    transposed: bool = False
    offset: float = 0.0


class Leaf(NamedTuple):
    """A weight of the source that provides rows of a derived one.

    Attributes:
        name: of the source's weight.
        rows: number of rows that it provides, after those of the previous leaf.
        transposed: the rows are its columns.
    """

    name: str
    rows: int
    transposed: bool


def leaves_of(weights: Weights, name: str) -> list[Leaf]:
    """The weights of the source that a weight consists of; itself if it is not derived."""
    if isinstance(weights, DerivedWeights):
        return weights.leaves(name)
    return [Leaf(name, weights.shape(name)[0], transposed=False)]


def derive(
    graph: ir.Graph, parts: Sequence[ir.Value], *, transposed: bool = False, offset: float = 0.0
) -> ir.Value:
    """The initializer of a recipe; created if it is missing."""
    names = tuple(part.name or "" for part in parts)
    shapes = [static_shape(part)[::-1] if transposed else static_shape(part) for part in parts]
    shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    name = _name(names, transposed=transposed, offset=offset)
    value = add_initializer(graph, name, type_of(parts[0]), shape)
    recipe = {name: Recipe(names, transposed, offset)}
    value.meta[_KEY] = dict(ChainMap(recipe, *(part.meta.get(_KEY, {}) for part in parts)))
    return value


def recipes_of(models: Iterable[ir.Model]) -> dict[str, Recipe]:
    """The recipes of all initializers and of their parts."""
    return {
        name: recipe
        for model in models
        for value in model.graph.initializers.values()
        for name, recipe in value.meta.get(_KEY, {}).items()
    }


class DerivedWeights:
    """Weights of a source, and those that recipes derive from them."""

    def __init__(self, source: Weights, recipes: Mapping[str, Recipe]) -> None:
        self._source = source
        self._recipes = recipes

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.shape(name)
        shapes = [self._part_shape(part, recipe) for part in recipe.parts]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, in the stored dtype, or float32 with an offset."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.rows(name, start, stop)
        slices, first = [], 0
        for part in recipe.parts:
            count = self._part_shape(part, recipe)[0]
            low, high = max(start - first, 0), min(stop - first, count)
            if low < high:
                read = self._columns if recipe.transposed else self.rows
                slices.append(read(part, low, high))
            first += count
        rows = slices[0] if len(slices) == 1 else torch.cat(slices)
        return rows.float() + recipe.offset if recipe.offset else rows

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a weight whose parts are all stored as codes in one format."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.code_format(name) if isinstance(self._source, Coded) else None
        if recipe.transposed or recipe.offset:
            return None
        return joint_format(self.code_format(part) for part in recipe.parts)

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a weight that has a `code_format`."""
        recipe = self._recipes.get(name)
        if recipe is None:
            if not isinstance(self._source, Coded):
                raise TypeError(f"{name}: its source stores no codes")
            return self._source.codes(name, start, stop)
        parts, first = [], 0
        for part in recipe.parts:
            count = self.shape(part)[0]
            low, high = max(start - first, 0), min(stop - first, count)
            if low < high:
                parts.append(self.codes(part, low, high))
            first += count
        return join_codes(parts)

    def leaves(self, name: str, *, transposed: bool = False) -> list[Leaf]:
        """The weights of the source that a weight consists of, in the order of its rows."""
        recipe = self._recipes.get(name)
        if recipe is None:
            shape = self._source.shape(name)
            return [Leaf(name, shape[-1] if transposed else shape[0], transposed)]
        swapped = transposed != recipe.transposed
        return [leaf for part in recipe.parts for leaf in self.leaves(part, transposed=swapped)]

    def _part_shape(self, part: str, recipe: Recipe) -> tuple[int, ...]:
        shape = self.shape(part)
        return shape[::-1] if recipe.transposed else shape

    def _columns(self, name: str, start: int, stop: int) -> Tensor:
        """Columns `[start:stop]` of a weight, as rows; reads a few of its own rows at a time."""
        rows, columns = self.shape(name)
        step = max(1, READ_ELEMENTS // columns)
        return torch.cat(
            [
                self.rows(name, row, min(row + step, rows))[:, start:stop].T
                for row in range(0, rows, step)
            ],
            dim=1,
        )


def _name(parts: tuple[str, ...], *, transposed: bool, offset: float) -> str:
    """A name such as `0.attention.q+k+v.weight`, which has common parts once."""
    split = [part.split(".") for part in parts]
    if len(parts) == 1:
        head, tail, inner = len(split[0]) - 1, 1, []
    else:
        shortest = min(map(len, split))
        tail = min(_common([names[::-1] for names in split]), shortest - 1)
        head = min(_common(split), shortest - 1 - tail)
        inner = ["+".join(".".join(names[head : len(names) - tail]) for names in split)]
    inner += ["T"] if transposed else []
    inner += [f"plus_{offset:g}"] if offset else []
    return ".".join([*split[0][:head], *inner, *split[0][len(split[0]) - tail :]])


def _common(names: list[list[str]]) -> int:
    """Length of the common prefix, in parts of dotted names."""
    count = 0
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count

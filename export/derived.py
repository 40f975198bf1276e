"""Weights that a graph reads in another form than the checkpoint stores them.

A pass that joins rows, swaps axes, adds a number or rotates gives the new initializer a recipe.
Nothing is computed until the rows are read.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.rotation import rotated
from ortolan.export.values import add_initializer, static_shape, type_of
from ortolan.modeling.codes import CodedRows, StoredCodes, join_codes, joint_format
from ortolan.modeling.lazy_tensor import READ_ELEMENTS
from ortolan.modeling.weights import Weights, read_weight

Side = Literal["", "inputs", "outputs"]

_KEY = "ortolan.recipes"
"""Metadata key of a graph's recipes, by name; never written to files."""


class Recipe(NamedTuple):
    """How to compute a weight from others.

    Attributes:
        parts: names of the weights whose rows are joined; a part may have a recipe itself.
        transposed: swap the two axes of every part first.
        offset: added to every element.
        rotated: axis of the only part, a matrix `(outputs, inputs)` or a vector of outputs, that
            is multiplied by the rotation of its size (`export.rotation`).
        gain: name of a vector that multiplies the inputs before that.
    """

    parts: tuple[str, ...]
    transposed: bool = False
    offset: float = 0.0
    rotated: Side = ""
    gain: str = ""


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
    middle = (["T"] if transposed else []) + ([f"plus_{offset:g}"] if offset else [])
    name = _name(names, middle=middle)
    graph.meta.setdefault(_KEY, {})[name] = Recipe(names, transposed, offset)
    return add_initializer(graph, name, type_of(parts[0]), shape)


def derive_rotated(
    graph: ir.Graph, part: ir.Value, side: Side, gain: ir.Value | None = None
) -> ir.Value:
    """The initializer of a rotated weight; created if it is missing."""
    name = _name((part.name or "",), middle=["rotated"])
    recipe = Recipe((part.name or "",), rotated=side, gain="" if gain is None else gain.name or "")
    graph.meta.setdefault(_KEY, {})[name] = recipe
    return add_initializer(graph, name, type_of(part), static_shape(part))


def recipes_of(models: Iterable[ir.Model]) -> Mapping[str, Recipe]:
    """The recipes of all graphs, those that later passes add included."""
    return ChainMap(*(model.graph.meta.setdefault(_KEY, {}) for model in models))


class DerivedWeights:
    """Weights of a source, and those that recipes derive from them."""

    def __init__(self, source: Weights, recipes: Mapping[str, Recipe]) -> None:
        self._source = source
        self._recipes = recipes
        self._held: tuple[str, Tensor] | None = None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.shape(name)
        shapes = [self._part_shape(part, recipe) for part in recipe.parts]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, in the stored dtype, or float32 with an offset or rotated."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.rows(name, start, stop)
        if recipe.rotated == "inputs":
            rows = self.rows(recipe.parts[0], start, stop).float()
            return rotated(rows * read_weight(self, recipe.gain) if recipe.gain else rows)
        if recipe.rotated == "outputs":
            return self._rotated_outputs(recipe.parts[0], start, stop)
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

    def codes(self, name: str) -> StoredCodes | None:
        """The codes of a weight; None unless all of its parts are stored as codes."""
        recipe = self._recipes.get(name)
        if recipe is None:
            return self._source.codes(name)
        parts = [self.codes(part) for part in recipe.parts]
        coded = [part for part in parts if part is not None]
        if recipe.transposed or recipe.offset or recipe.rotated or len(coded) < len(parts):
            return None

        def rows(start: int, stop: int) -> CodedRows:
            read, first = [], 0
            for part, codes in zip(recipe.parts, coded, strict=True):
                count = self.shape(part)[0]
                low, high = max(start - first, 0), min(stop - first, count)
                if low < high:
                    read.append(codes.rows(low, high))
                first += count
            return join_codes(read)

        return StoredCodes(lambda: joint_format(part.format for part in coded), rows)

    def leaves(self, name: str, *, transposed: bool = False) -> list[Leaf]:
        """The weights of the source that a weight consists of, in the order of its rows."""
        recipe = self._recipes.get(name)
        if recipe is None:
            shape = self._source.shape(name)
            return [Leaf(name, shape[-1] if transposed else shape[0], transposed)]
        swapped = transposed != recipe.transposed
        return [leaf for part in recipe.parts for leaf in self.leaves(part, transposed=swapped)]

    def _rotated_outputs(self, name: str, start: int, stop: int) -> Tensor:
        """Rows of a weight whose outputs are rotated, or numbers of a bias.

        Each depends on all rows, so the whole weight is in memory until its last row is read.
        """
        if self._held is None or self._held[0] != name:
            whole = read_weight(self, name)
            self._held = name, rotated(whole.T).T if whole.dim() > 1 else rotated(whole)
        rows = self._held[1][start:stop]
        if stop == len(self._held[1]):
            self._held = None
        return rows

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


def _name(parts: tuple[str, ...], *, middle: Sequence[str]) -> str:
    """A name such as `0.attention.q+k+v.weight`, which has common parts once, and the middle."""
    split = [part.split(".") for part in parts]
    if len(parts) == 1:
        head, tail, inner = len(split[0]) - 1, 1, []
    else:
        shortest = min(map(len, split))
        tail = min(_common([names[::-1] for names in split]), shortest - 1)
        head = min(_common(split), shortest - 1 - tail)
        inner = ["+".join(".".join(names[head : len(names) - tail]) for names in split)]
    return ".".join([*split[0][:head], *inner, *middle, *split[0][len(split[0]) - tail :]])


def _common(names: list[list[str]]) -> int:
    """Length of the common prefix, in parts of dotted names."""
    count = 0
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count

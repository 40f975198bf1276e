"""Weights that a graph reads in another form than the checkpoint stores them.

A pass that joins rows, swaps axes, adds a number or rotates gives the new initializer a recipe.
Nothing is computed until the rows are read.
"""

from collections import ChainMap
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.rotation import rotated
from ortolan.export.values import add_initializer, static_shape, type_of
from ortolan.modeling.lazy_tensor import LazyTensor, lazy_rows, rows_of, stored_tensor, whole_of
from ortolan.modeling.weights import TensorWeights, Weights

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
    """A weight whose rows, or columns if transposed, are the next rows of a derived one."""

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


class DerivedWeights(TensorWeights):
    """Weights of a source, and those that recipes derive from them."""

    def __init__(self, source: Weights, recipes: Mapping[str, Recipe]) -> None:
        super().__init__(_Tensors(source, recipes))
        self._recipes = recipes

    def leaves(self, name: str, *, transposed: bool = False) -> list[Leaf]:
        """The weights of the source that a weight consists of, in the order of its rows."""
        recipe = self._recipes.get(name)
        if recipe is None:
            shape = self.shape(name)
            return [Leaf(name, shape[-1] if transposed else shape[0], transposed)]
        swapped = transposed != recipe.transposed
        return [leaf for part in recipe.parts for leaf in self.leaves(part, transposed=swapped)]


class _Tensors(dict[str, Tensor]):
    """Lazy tensors by name, each made when it is first looked up."""

    def __init__(self, source: Weights, recipes: Mapping[str, Recipe]) -> None:
        super().__init__()
        self._source = source
        self._recipes = recipes

    def __missing__(self, name: str) -> Tensor:
        recipe = self._recipes.get(name)
        if recipe is not None:
            gain = self[recipe.gain] if recipe.gain else None
            tensor = _derived(recipe, [self[part] for part in recipe.parts], gain)
        elif isinstance(self._source, TensorWeights):
            tensor = self._source.tensors[name]
            if not isinstance(tensor, LazyTensor):  # or joining would copy it
                tensor = stored_tensor(tensor.shape, partial(rows_of, tensor), tensor.dtype)
        else:
            meta = torch.empty(self._source.shape(name), device="meta")
            rows = partial(self._rows, name)
            tensor = read = lazy_rows(meta, rows)
            read.codes = self._source.codes(name)
        self[name] = tensor
        return tensor

    def _rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._source.rows(name, start, stop).float()


def _derived(recipe: Recipe, parts: list[Tensor], gain: Tensor | None) -> Tensor:
    """The tensor that a recipe makes of others; float32 with an offset, or rotated."""
    if recipe.rotated:
        meta = torch.empty(parts[0].shape, device="meta")
        by_inputs = recipe.rotated == "inputs"
        rows = partial(_rotated_inputs if by_inputs else _rotated_outputs, parts[0], gain)
        return lazy_rows(meta, rows, is_sliced=by_inputs)
    turned = [part.T for part in parts] if recipe.transposed else parts
    tensor = turned[0] if len(turned) == 1 else torch.cat(turned)
    return tensor.float() + recipe.offset if recipe.offset else tensor


def _rotated_inputs(part: Tensor, gain: Tensor | None, start: int, stop: int) -> Tensor:
    rows = rows_of(part, start, stop).float()
    return rotated(rows if gain is None else rows * whole_of(gain).float())


def _rotated_outputs(part: Tensor, _: Tensor | None, start: int, stop: int) -> Tensor:
    """Rows of a weight whose outputs are rotated, or numbers of a bias; each depends on all."""
    whole = whole_of(part).float()
    return (rotated(whole.T).T if whole.dim() > 1 else rotated(whole))[start:stop]


def tensor_named(name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The tensor that an initializer holds, also one of joined or transposed weights."""
    own = [part for part in name.split(".") if part != "T"]
    parts = _parts(".".join(own), tensors)
    if not parts:
        return None
    is_transposed = len(own) < name.count(".") + 1
    joined = [tensors[part].T if is_transposed else tensors[part] for part in parts]
    return joined[0] if len(joined) == 1 else torch.cat(joined)


def _parts(name: str, known: Container[str]) -> list[str]:
    """The names of the parts that `_name` names a weight after; empty if they are not known."""
    if name in known:
        return [name]
    first, *inner = (part.split(".") for part in name.split("+"))
    last = inner.pop() if inner else []
    for head, tail in product(range(len(first)), range(len(last))):
        middle = [first[head:], *inner, last[: len(last) - tail]]
        names = [".".join([*first[:head], *own, *last[len(last) - tail :]]) for own in middle]
        if all(part in known for part in names):
            return names
    return []


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

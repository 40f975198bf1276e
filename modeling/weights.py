"""Model weights by Ortolan's names, wherever they are stored, and the tables that map names.

A family's table maps the names of a published checkpoint to Ortolan's. Several published tensors
may fill the rows of one weight, in the order of the table. One may hold rows of several weights, or
rows in another order. `Weights` hides this: it reads any rows of any weight, and nothing else.
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ortolan.modeling.codes import StoredCodes
from ortolan.modeling.errors import WeightError
from ortolan.modeling.lazy_tensor import READ_ELEMENTS, LazyTensor, rows_of, whole_of

Shapes = Mapping[str, tuple[int, ...]]

HEAD, HEAD_BIAS, EMBEDDING = "head.weight", "head_bias", "embedding.weight"


class Rows(NamedTuple):
    """Layout of a published tensor of which some rows are ours, in another order.

    Its rows are viewed as `(groups, members, width)`, where -1 is inferred. Ours are the rows of
    all groups for the first range of `parts`, then for the next.

    Attributes:
        groups: such as heads.
        members: of each group, such as a query, a key and a value.
        width: rows per member, such as the channels of a head.
        parts: ranges of members.
    """

    groups: int
    members: int
    width: int
    parts: tuple[tuple[int, int], ...]

    def published(self, count: int) -> int:
        """Number of rows of the published tensor if `count` of them are ours."""
        return count * self.members // sum(stop - start for start, stop in self.parts)

    def order(self, count: int) -> Tensor:
        """Published row of each of our `count` rows, int64 `(count,)`."""
        all_GMW = torch.arange(self.published(count)).view(self.groups, self.members, self.width)
        return torch.cat([all_GMW[:, start:stop].flatten() for start, stop in self.parts])


class HeadPadding(NamedTuple):
    """Heads that are wider in our weight than in the checkpoint, filled with zeros.

    Attributes:
        published: channels of a head in the checkpoint.
        ours: channels of a head in our weight.
        axis: 0 if the rows are channels of heads, 1 if the columns are.
    """

    published: int
    ours: int
    axis: Literal[0, 1]


class Target(NamedTuple):
    """Destination of a published tensor, and how to convert its values.

    Attributes:
        name: our parameter, with `{}` for the layer, or its number for one layer alone.
        transposed: the checkpoint stores `(in, out)`, as GPT-2 does.
        leading: number of additional first axes of length 1 in the checkpoint.
        last: lengths of the axes that our last one is in the checkpoint, such as those of a
            convolution; empty if it is one axis there, too.
        spare: weight of a head that a checkpoint may contain even if this model has none like it.
        rows: which of its rows are ours; None for all, in order.
        offset: added to the published values, which are then read as float32.
        halves: holds all experts of a layer, gate rows before up rows; ours alternate.
        zeros: the format has no such tensor: our vector is zero.
        heads: our heads are wider; no other conversion applies then.
    """

    name: str
    transposed: bool = False
    leading: int = 0
    last: tuple[int, ...] = ()
    spare: bool = False
    rows: Rows | None = None
    offset: float = 0.0
    halves: bool = False
    zeros: bool = False
    heads: HeadPadding | None = None


Entry = Target | tuple[Target, ...] | str | None
"""Destination of a published tensor; see `Table`."""

Table = Mapping[str, Entry]
"""From published names (`{}` for the layer) to ours; None drops a tensor on purpose.

A second `{}` is the number of an expert that is stored on its own. A name that ends in `*` matches
every name with that prefix, to drop it or to replace the prefix. Any other name with a string is a
second name of that tensor.
"""


class Piece(NamedTuple):
    """Rows of one of our weights that a published tensor fills.

    Attributes:
        name: name of the published tensor.
        rows: number of our rows.
        target: how to convert them.
    """

    name: str
    rows: int
    target: Target

    def published_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Published shape for a weight of shape `ours`."""
        layout = self.target.rows
        inner = (*ours[1:-1], *(self.target.last or ours[1:][-1:]))
        shape = (self.rows if layout is None else layout.published(self.rows), *inner)
        return shape[::-1] if self.target.transposed else (1,) * self.target.leading + shape

    def ours(self, stored: Tensor) -> Tensor:
        """Our rows of the published tensor; float32 if a number is added."""
        rows = self._ours(stored)
        if self.target.rows is not None:
            rows = rows[self.target.rows.order(self.rows)]
        return rows.float() + self.target.offset if self.target.offset else rows

    def write(self, rows: Tensor, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Write our rows to the tensors of a checkpoint; the inverse of `ours`."""
        values = (rows.float() - self.target.offset if self.target.offset else rows).to(dtype)
        layout = self.target.rows
        if layout is None:
            tensors[self.name] = self._turned(values).contiguous()
            return
        if self.name not in tensors:
            tensors[self.name] = torch.empty(self.published_shape(tuple(rows.shape)), dtype=dtype)
        self._ours(tensors[self.name])[layout.order(self.rows)] = values

    def _ours(self, stored: Tensor) -> Tensor:
        """A view of a stored tensor with rows as its first axis."""
        if self.target.transposed:
            return stored.T
        if self.target.leading:
            stored = stored.reshape(stored.shape[self.target.leading :])
        return stored.flatten(-len(self.target.last)) if self.target.last else stored

    def _turned(self, rows: Tensor) -> Tensor:
        """Rows in the layout of the checkpoint."""
        if self.target.transposed:
            return rows.T
        if self.target.last:
            rows = torch.unflatten(rows, -1, self.target.last)
        return rows.reshape((1,) * self.target.leading + tuple(rows.shape))


class Weights(Protocol):
    """Weights of a model by our names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its stored dtype; a scalar is read whole."""
        ...

    def codes(self, name: str) -> StoredCodes | None:
        """The integer codes of a weight; None if it is not stored as such."""
        del name
        return None


class TensorWeights(Weights):
    """Weights that are tensors, lazy or not."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._held: tuple[Tensor, Tensor] | None = None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return tuple(self.tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its dtype."""
        tensor = self.tensors[name]
        if not isinstance(tensor, LazyTensor) or 0 in tensor.axes or not tensor.dim():
            return rows_of(tensor, start, stop)
        # Any row needs the whole weight: hold it until another weight is read.
        if self._held is None or self._held[0] is not tensor:
            self._held = tensor, whole_of(tensor)
        return self._held[1][start:stop]

    def codes(self, name: str) -> StoredCodes | None:
        """The integer codes of a weight; None if it is not stored as such."""
        tensor = self.tensors[name]
        return tensor.codes if isinstance(tensor, LazyTensor) else None


def module_weights(module: nn.Module) -> TensorWeights:
    """Weights of a live module."""
    return TensorWeights({name: p.detach().cpu() for name, p in module.named_parameters()})


class Replaced:
    """Weights of which some are read from elsewhere."""

    def __init__(self, weights: Weights, instead: Mapping[str, Weights]) -> None:
        self._weights = weights
        self._instead = instead

    def source(self, name: str) -> Weights:
        """The weights that a name is read from."""
        return self._instead.get(name, self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight."""
        return self.source(name).rows(name, start, stop)

    def codes(self, name: str) -> StoredCodes | None:
        """The integer codes of a weight; None if it is not stored as such."""
        return self.source(name).codes(name)


def read_weight(weights: Weights, name: str) -> Tensor:
    """A whole weight in float32, converted a few rows at a time to hold it in memory only once."""
    shape = weights.shape(name)
    if not shape:
        return weights.rows(name, 0, 1).float()
    whole = torch.empty(shape)
    step = max(1, READ_ELEMENTS // max(math.prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        whole[start:stop] = weights.rows(name, start, stop)
    return whole


def published_pieces(table: Table, ours: str, parts: tuple[int, ...]) -> tuple[Piece, ...]:
    """Published tensors that make up one of our weights, in order."""
    template, layer = name_template(ours)
    places = [
        (name, target)
        for name in table
        for target in targets(table, name)
        if target.name in (ours, template)
    ]
    if not places:
        raise WeightError(
            f"{ours}: the family's format has no place for this weight. Save the model as another "
            "family."
        )
    rows = parts if len(places) > 1 else (sum(parts),)
    return tuple(
        Piece(name.format(layer), count, target)
        for (name, target), count in zip(places, rows, strict=True)
    )


def targets(table: Table, entry: str) -> tuple[Target, ...]:
    """Targets of a table entry."""
    match table.get(entry):
        case Target() as target:
            return (target,)
        case None | str():
            return ()
        case entries:
            return entries


def name_template(name: str) -> tuple[str, str]:
    """Replace the layer number of a name by `{}`; return the template and the number, or ""."""
    match = re.search(r"\.(\d+)\.", f".{name}")
    if match is None:
        return name, ""
    start, end = (position - 1 for position in match.span(1))
    return f"{name[:start]}{{}}{name[end:]}", match.group(1)

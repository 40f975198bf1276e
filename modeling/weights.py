"""Model weights by Ortolan's names, wherever they are stored, and the tables that map names.

A family's table maps the names of a published checkpoint to Ortolan's. Several published tensors
may fill the rows of one weight, in the order of the table. One may hold rows of several weights, or
rows in another order. `Weights` hides this: it reads any rows of any weight, and nothing else.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ortolan.modeling.codes import CodedRows, CodeFormat, join_codes
from ortolan.modeling.errors import WeightError
from ortolan.modeling.lazy_tensor import READ_ELEMENTS, row_spans

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


class TensorSource(Protocol):
    """Published tensors by name, read slice by slice."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        ...

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`, in its stored dtype."""
        ...


@runtime_checkable
class Coded(Protocol):
    """Tensors that may be stored as codes, which can be read unchanged."""

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a tensor's codes; None if it has none that kernels support."""
        ...

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a tensor that has a format."""
        ...


@runtime_checkable
class Quantizable(Protocol):
    """Tensors of files, some of which may be stored in low-bit form."""

    def is_quantized(self) -> bool:
        """Whether any tensor is stored in fewer than 16 bits per value."""
        ...


@runtime_checkable
class Turned(Protocol):
    """Tensors of which some were quantized with their outputs first, whatever the format says."""

    def has_outputs_first(self, name: str) -> bool:
        """Whether a matrix is `(outputs, inputs)` even where the published one is transposed."""
        ...


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

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors it reads for a weight of shape `ours`, by their table names."""
        return {} if self.target.zeros else {self.name: self.published_shape(ours)}

    def renamed(self, names: Mapping[str, str]) -> "Piece":
        """Return the piece under the checkpoint's name instead of the table's."""
        return self._replace(name=names.get(self.name, self.name))

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Our rows `[start:stop]` of this piece, in their stored dtype unless converted."""
        if self.target.zeros:
            return torch.zeros(stop - start)
        rows = self._stored(source, start, stop)
        return rows.float() + self.target.offset if self.target.offset else rows

    def write(self, rows: Tensor, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Write our rows to the tensors of a checkpoint; the inverse of `read`."""
        values = (rows.float() - self.target.offset if self.target.offset else rows).to(dtype)
        layout = self.target.rows
        if layout is None:
            tensors[self.name] = self._turned(values).contiguous()
            return
        if self.name not in tensors:
            tensors[self.name] = torch.empty(self.published_shape(tuple(rows.shape)), dtype=dtype)
        self._ours(tensors[self.name])[layout.order(self.rows)] = values

    def code_format(self, source: Coded) -> CodeFormat | None:
        """Format of its codes; None unless they are rows of a stored matrix of codes."""
        plain = Target(self.target.name, rows=self.target.rows, spare=self.target.spare)
        if self.target != plain:
            return None
        return source.code_format(self.name)

    def codes(self, source: Coded, start: int, stop: int) -> CodedRows:
        """Codes of our rows `[start:stop]` of this piece."""
        spans = [
            CodedRows(*(part[rows] for part in source.codes(self.name, first, last)))
            for first, last, rows in self._spans(start, stop)
        ]
        return join_codes(spans)

    def _stored(self, source: TensorSource, start: int, stop: int) -> Tensor:
        axis = int(self.target.transposed) or self.target.leading
        spans = [
            self._ours(source.read(self.name, first, last, axis=axis))[rows]
            for first, last, rows in self._spans(start, stop)
        ]
        return spans[0] if len(spans) == 1 else torch.cat(spans)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor | slice]]:
        """Ranges of published rows to read, and which rows of each range are ours."""
        layout = self.target.rows
        if layout is None:
            yield start, stop, slice(None)
        else:
            yield from row_spans(layout.order(self.rows)[start:stop])

    def _ours(self, stored: Tensor) -> Tensor:
        """A view of a stored tensor with rows as its first axis."""
        if self.target.transposed:
            return stored.T
        rows = stored.reshape(stored.shape[self.target.leading :])
        return rows.flatten(-len(self.target.last)) if self.target.last else rows

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


class ModuleWeights:
    """Weights of a live module."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors = {name: p.detach().cpu() for name, p in module.named_parameters()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return tuple(self._tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its dtype."""
        tensor = self._tensors[name]
        return tensor[start:stop] if tensor.dim() else tensor


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

"""The weights of a model by our names, wherever they come from, and the tables that map names.

A family's table maps the names of a published checkpoint to ours. Several published tensors may
fill the rows of one of ours, in the order of the table; one may hold rows of several of ours, or
rows in another order. `Weights` hides this, and reads any rows of any weight without holding
another.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ortolan.modeling.errors import WeightError

Shapes = Mapping[str, tuple[int, ...]]

HEAD, HEAD_BIAS, EMBEDDING = "head.weight", "head_bias", "embedding.weight"

READ_ELEMENTS = 1 << 21
"""Elements of a weight that are in flight while it is read."""

GAP = 16
"""Rows of no use between others that are read with them, which is faster than a read for each."""


class Rows(NamedTuple):
    """Which rows of a published tensor are ours, and in what order.

    Its rows are seen as `(groups, members, width)`, where -1 stands for as many as there are;
    ours are those of all groups for the first of `parts`, then for the next.

    Attributes:
        groups: such as heads.
        members: of each group, such as a query, a key and a value.
        width: rows of each member, such as the channels of a head.
        parts: ranges of members.
    """

    groups: int
    members: int
    width: int
    parts: tuple[tuple[int, int], ...]

    def published(self, count: int) -> int:
        """Rows of the published tensor, where `count` of them are ours."""
        return count * self.members // sum(stop - start for start, stop in self.parts)

    def order(self, count: int) -> Tensor:
        """The published row of each of our `count` rows, int64 `(count,)`."""
        all_GMW = torch.arange(self.published(count)).view(self.groups, self.members, self.width)
        return torch.cat([all_GMW[:, start:stop].flatten() for start, stop in self.parts])


class Target(NamedTuple):
    """Where a published tensor goes, and what our values are to its.

    Attributes:
        name: our parameter, with `{}` for the layer.
        transposed: the checkpoint stores `(in, out)`, as GPT-2 does.
        leading: the checkpoint stores it with one more axis, of length 1, in front.
        spare: of a head; a checkpoint may hold it though this model has another head, or none.
        rows: which of its rows are ours; None for all, as they are.
        offset: added to the published values, which are then read as float32.
        halves: of the experts of a layer in one tensor; it has the rows of the gate first, then
            those of up, which are ours in turn.
    """

    name: str
    transposed: bool = False
    leading: bool = False
    spare: bool = False
    rows: Rows | None = None
    offset: float = 0.0
    halves: bool = False


Entry = Target | tuple[Target, ...] | str | None
"""What becomes of a published tensor; see `Table`."""

Table = Mapping[str, Entry]
"""From a published name (`{}` for the layer) to ours; None for dropped on purpose.

A second `{}` stands for the expert of a layer, where each is stored by itself.

A name that ends in `*` stands for all that begin so: dropped, or read under another prefix.
"""


class TensorSource(Protocol):
    """Published tensors by name, read a slice at a time."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        ...

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype."""
        ...


CODE_BITS = (4, 8)

CODE_GROUPS = (32, 64, 128, 256)
"""Bits and groups of codes that kernels compute with."""


class CodeFormat(NamedTuple):
    """How rows of a weight are stored as small integers.

    Attributes:
        bits: of a code.
        group: inputs that share a scale.
        symmetric: every zero is the middle code.
        minimums: a number is added to each group.
    """

    bits: int
    group: int
    symmetric: bool
    minimums: bool = False


class CodedRows(NamedTuple):
    """Rows of a weight as `(value - zero) * scale + minimum`, in groups `(N, G)` of inputs.

    Attributes:
        values: uint8 `(N, K)`.
        scales: float32 `(N, G)`.
        zeros: uint8 `(N, G)`.
        minimums: float32 `(N, G)`.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    minimums: Tensor


@runtime_checkable
class Coded(Protocol):
    """Tensors of which some are stored as codes, which can be read as they are."""

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a tensor's codes; None where it has none that kernels take."""
        ...

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a tensor that has some."""
        ...


class Piece(NamedTuple):
    """What a published tensor gives to some rows of one of our weights.

    Attributes:
        name: of the published tensor.
        rows: of ours that it fills.
        target: how.
    """

    name: str
    rows: int
    target: Target

    def published_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the checkpoint stores, for a weight of shape `ours`."""
        layout = self.target.rows
        shape = (self.rows if layout is None else layout.published(self.rows), *ours[1:])
        return shape[::-1] if self.target.transposed else (1,) * self.target.leading + shape

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """What it reads, for a weight of shape `ours`: the names of the table, and shapes."""
        return {self.name: self.published_shape(ours)}

    def renamed(self, names: Mapping[str, str]) -> "Piece":
        """The same with the names of the checkpoint instead of those of the table."""
        return self._replace(name=names.get(self.name, self.name))

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Our rows `[start:stop]` of this piece, in their stored dtype if they are stored so."""
        rows = self._stored(source, start, stop)
        return rows.float() + self.target.offset if self.target.offset else rows

    def write(self, rows: Tensor, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        """Put our rows where the checkpoint stores them; the inverse of `read`."""
        values = (rows.float() - self.target.offset if self.target.offset else rows).to(dtype)
        layout = self.target.rows
        if layout is None:
            tensors[self.name] = self._turned(values).contiguous()
            return
        if self.name not in tensors:
            tensors[self.name] = torch.empty(self.published_shape(tuple(rows.shape)), dtype=dtype)
        self._ours(tensors[self.name])[layout.order(self.rows)] = values

    def code_format(self, source: Coded) -> CodeFormat | None:
        """The format of its codes; None where rows are not those of a matrix of codes."""
        plain = Target(self.target.name, rows=self.target.rows, spare=self.target.spare)
        if self.target != plain:
            return None
        return source.code_format(self.name)

    def codes(self, source: Coded, start: int, stop: int) -> CodedRows:
        """The codes of our rows `[start:stop]` of this piece."""
        spans = [
            CodedRows(*(part[rows] for part in source.codes(self.name, first, last)))
            for first, last, rows in self._spans(start, stop)
        ]
        return join_codes(spans)

    def _stored(self, source: TensorSource, start: int, stop: int) -> Tensor:
        axis = int(self.target.transposed or self.target.leading)
        spans = [
            self._ours(source.read(self.name, first, last, axis=axis))[rows]
            for first, last, rows in self._spans(start, stop)
        ]
        return spans[0] if len(spans) == 1 else torch.cat(spans)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor | slice]]:
        """Published rows to read, from the first to before the last, and which of them are ours."""
        layout = self.target.rows
        if layout is None:
            yield start, stop, slice(None)
            return
        wanted = layout.order(self.rows)[start:stop]
        step = wanted.diff()
        cuts = ((step < 1) | (step > GAP)).nonzero().flatten() + 1
        for span in torch.tensor_split(wanted, cuts):
            first, last = int(span[0]), int(span[-1]) + 1
            yield first, last, span - first

    def _ours(self, stored: Tensor) -> Tensor:
        """A view of what the checkpoint stores, with its rows first."""
        return stored.T if self.target.transposed else stored[0] if self.target.leading else stored

    def _turned(self, rows: Tensor) -> Tensor:
        """Rows as the checkpoint stores them."""
        return rows.T if self.target.transposed else rows[None] if self.target.leading else rows


class Weights(Protocol):
    """The weights of a model by our names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its stored dtype; a number by itself whole."""
        ...


class ModuleWeights:
    """The weights of a live module."""

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
    """Weights of which some are read elsewhere."""

    def __init__(self, weights: Weights, instead: Mapping[str, Weights]) -> None:
        self._weights = weights
        self._instead = instead

    def source(self, name: str) -> Weights:
        """Where a weight is read."""
        return self._instead.get(name, self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight."""
        return self.source(name).rows(name, start, stop)


def joint_format(formats: Iterable[CodeFormat | None]) -> CodeFormat | None:
    """The format of several parts together; None unless all have the same bits and groups."""
    found = list(formats)
    known = [each for each in found if each is not None]
    if len(known) < len(found) or len({each[:2] for each in known}) != 1:
        return None
    return known[0]._replace(
        symmetric=all(each.symmetric for each in known),
        minimums=any(each.minimums for each in known),
    )


def join_codes(parts: Sequence[CodedRows]) -> CodedRows:
    """Rows of several parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return CodedRows(*(torch.cat(each) for each in zip(*parts, strict=True)))


def read_weight(weights: Weights, name: str) -> Tensor:
    """A whole weight in float32, converted a few rows at a time: it is in memory once."""
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
    """The published tensors that make up one of our weights, in order.

    Args:
        table: the family's table.
        ours: the name of the weight.
        parts: rows of each projection in it.

    Raises:
        WeightError: the family's format has no place for this weight.
    """
    template, layer = name_template(ours)
    found = [
        (name, target)
        for name in table
        for target in targets(table, name)
        if target.name == template
    ]
    if not found:
        raise WeightError(
            f"{ours}: expected a place in the family's format, got none. "
            "This model cannot be stored in this format."
        )
    rows = parts if len(found) > 1 else (sum(parts),)
    return tuple(
        Piece(name.format(layer), count, target)
        for (name, target), count in zip(found, rows, strict=True)
    )


def targets(table: Table, entry: str) -> tuple[Target, ...]:
    """What an entry of a table gives rows to."""
    match table.get(entry):
        case Target() as target:
            return (target,)
        case None | str():
            return ()
        case several:
            return several


def name_template(name: str) -> tuple[str, str]:
    """A name with its layer number replaced by `{}`, and that number (or nothing)."""
    found = re.search(r"\.(\d+)\.", f".{name}")
    if found is None:
        return name, ""
    start, end = (position - 1 for position in found.span(1))
    return f"{name[:start]}{{}}{name[end:]}", found.group(1)

"""The weights of a model by our names, wherever they come from.

A family's table maps the names of a published checkpoint to ours; several published tensors
may fill the rows of one of ours, in the order of the table. `Weights` hides this, and reads any
rows of any weight without holding another.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ortolan.modeling.errors import WeightError

Shapes = Mapping[str, tuple[int, ...]]

HEAD, EMBEDDING = "head.weight", "embedding.weight"

ROWS_AT_ONCE = 4096


READ_ELEMENTS = 1 << 21
"""Elements of a weight that are in flight while it is read."""


class Target(NamedTuple):
    """Where a published tensor goes.

    Attributes:
        name: our parameter, with `{}` for the layer.
        transposed: the checkpoint stores `(in, out)`, as GPT-2 does.
        leading: the checkpoint stores it with one more axis, of length 1, in front.
        spare: of a head; a checkpoint may hold it though this model has another head, or none.
    """

    name: str
    transposed: bool = False
    leading: bool = False
    spare: bool = False


Table = Mapping[str, Target | None]
"""From a published name (`{}` for the layer) to ours; None for dropped on purpose."""

OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of the parameters of norms in checkpoints of the first BERTs, and in tables."""


class Piece(NamedTuple):
    """A published tensor that fills some rows of one of our weights; see `Target`."""

    name: str
    rows: int
    transposed: bool
    leading: bool

    def published(self, rows: Tensor) -> Tensor:
        """Our rows as the checkpoint stores them."""
        return rows.T if self.transposed else rows[None] if self.leading else rows

    def ours(self, stored: Tensor) -> Tensor:
        """Our rows, from those that the checkpoint stores."""
        return stored.T if self.transposed else stored[0] if self.leading else stored


class TensorSource(Protocol):
    """Published tensors by name, read a slice at a time."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        ...

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype."""
        ...


class Weights(Protocol):
    """The weights of a model by our names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, in its stored dtype."""
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
        return self._tensors[name][start:stop]


class MappedWeights:
    """The weights of a checkpoint, through its family's table."""

    def __init__(
        self, source: TensorSource, pieces: Mapping[str, tuple[Piece, ...]], shapes: Shapes
    ) -> None:
        self._source = source
        self._pieces = pieces
        self._shapes = shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, read now and kept nowhere, in their stored dtype."""
        slices, offset = [], 0
        for piece in self._pieces[name]:
            first, last = max(start - offset, 0), min(stop - offset, piece.rows)
            if first < last:
                axis = int(piece.transposed or piece.leading)
                slices.append(piece.ours(self._source.read(piece.name, first, last, axis=axis)))
            offset += piece.rows
        return slices[0] if len(slices) == 1 else torch.cat(slices)


def read_weight(weights: Weights, name: str) -> Tensor:
    """A whole weight in float32, converted a few rows at a time: it is in memory once."""
    shape = weights.shape(name)
    whole = torch.empty(shape)
    step = max(1, READ_ELEMENTS // max(math.prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        whole[start:stop] = weights.rows(name, start, stop)
    return whole


def map_weights(
    source: TensorSource,
    table: Table,
    expected: Shapes,
    parts: Mapping[str, tuple[int, ...]],
    *,
    base_model_prefix: str,
    tied: Mapping[str, str],
) -> MappedWeights:
    """Check a checkpoint against a model and give access to its weights by our names.

    Args:
        source: the published tensors.
        table: the family's table.
        expected: the shape of every parameter of the model, by our names.
        parts: rows of each projection in the parameters that hold several.
        base_model_prefix: of names, which a checkpoint without the head leaves out.
        tied: our names of weights that share another's values, which a checkpoint may repeat.

    Raises:
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
    """
    published = source.shapes()
    unclaimed = _table_names(published, table, base_model_prefix)
    mapped: dict[str, tuple[Piece, ...]] = {}
    problems = []
    for ours, shape in expected.items():
        found = []
        for piece in published_pieces(table, ours, parts.get(ours, shape[:1])):
            name = unclaimed.pop(piece.name, None)
            if name is None:
                problems.append(f"missing {piece.name}")
                continue
            problems += _misshapen(name, published[name], _published_shape(piece, shape))
            found.append(piece._replace(name=name))
        mapped[ours] = tuple(found)
    # Where the head is the embedding, a checkpoint may hold a copy of it.
    copies = {
        name: tied[target.name]
        for place, name in unclaimed.items()
        if (target := _target(table, place)) is not None and target.name in tied
    }
    for name, original in copies.items():
        problems += _misshapen(name, published[name], expected[original])
    for place, name in unclaimed.items():
        if name not in copies and not _is_dropped(table, place):
            problems.append(f"unexpected {name}")
    if problems:
        raise WeightError(
            f"weights: expected those that config.json describes, got {len(problems)} "
            f"differences: {'; '.join(sorted(problems))}. "
            "The checkpoint and its config do not belong together."
        )
    weights = MappedWeights(source, mapped, expected)
    for name, original in copies.items():
        _check_tied(source, name, weights, original)
    return weights


def published_pieces(table: Table, ours: str, parts: tuple[int, ...]) -> tuple[Piece, ...]:
    """The published tensors that make up one of our weights, in order.

    Args:
        table: the family's table.
        ours: the name of the weight.
        parts: rows of each projection in it.

    Raises:
        WeightError: the family's format has no place for this weight.
    """
    template, layer = _template(ours)
    found = [
        (name.format(layer), target)
        for name, target in table.items()
        if target is not None and target.name == template
    ]
    if not found:
        raise WeightError(
            f"{ours}: expected a place in the family's format, got none. "
            "This model cannot be stored in this format."
        )
    rows = parts if len(found) > 1 else (sum(parts),)
    return tuple(
        Piece(name, count, target.transposed, target.leading)
        for (name, target), count in zip(found, rows, strict=True)
    )


def _published_shape(piece: Piece, ours: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a checkpoint stores a piece of a weight of shape `ours`."""
    shape = (piece.rows, *ours[1:])
    return shape[::-1] if piece.transposed else (1, *shape) if piece.leading else shape


def _entry(table: Table, name: str) -> str | None:
    """The name under which a table has a tensor: its own, or with `{}` for the layer."""
    return next((key for key in (name, _template(name)[0]) if key in table), None)


def _target(table: Table, name: str) -> Target | None:
    return table.get(_entry(table, name) or name)


def _is_dropped(table: Table, name: str) -> bool:
    entry = _entry(table, name)
    if entry is None:
        return False
    target = table[entry]
    return target is None or target.spare


def _misshapen(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> list[str]:
    return [] if got == want else [f"{name}: expected shape {want}, got {got}"]


def _template(name: str) -> tuple[str, str]:
    """A name with its layer number replaced by `{}`, and that number (or nothing)."""
    found = re.search(r"\.(\d+)\.", f".{name}")
    if found is None:
        return name, ""
    start, end = (position - 1 for position in found.span(1))
    return f"{name[:start]}{{}}{name[end:]}", found.group(1)


def _table_names(published: Shapes, table: Table, prefix: str) -> dict[str, str]:
    """The table's name of each published tensor; without a head, the prefix is left out."""
    bare = not any(name.startswith(f"{prefix}.") for name in published)
    names = {}
    for name in published:
        place = _modern(name) if _entry(table, name) is None else name
        names[f"{prefix}.{place}" if bare and _entry(table, place) is None else place] = name
    return names


def _modern(name: str) -> str:
    """A name whose end is not one of `OLD_NAMES`."""
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _check_tied(source: TensorSource, head: str, weights: Weights, original: str) -> None:
    """Raise WeightError unless a tied weight is a copy of the other (the embedding)."""
    rows = weights.shape(original)[0]
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        ours = weights.rows(original, start, stop)
        if not torch.equal(source.read(head, start, stop).float(), ours.float()):
            raise WeightError(
                f"{head}: expected a copy of the embedding, got other values. "
                "If they were trained apart, set tie_word_embeddings in config.json to false."
            )

"""The weights of a checkpoint by our names, through its family's table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.expert_pieces import AllExperts, expert_pieces
from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import (
    Coded,
    CodedRows,
    CodeFormat,
    Piece,
    Shapes,
    Table,
    TensorSource,
    Weights,
    join_codes,
    joint_format,
    name_template,
    published_pieces,
    targets,
)

ROWS_AT_ONCE = 4096

MOST_NAMED = 16
"""Weights that the message of an error names."""

OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of the parameters of norms in checkpoints of the first BERTs, and in tables."""


class Readable(Protocol):
    """What some tensors of a checkpoint give to rows of one of our weights; see `Piece`."""

    @property
    def rows(self) -> int:
        """Rows of ours that it fills."""
        ...

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """What it reads, for a weight of shape `ours`: the names of the table, and shapes."""
        ...

    def renamed(self, names: Mapping[str, str]) -> "Readable":
        """The same with the names of the checkpoint instead of those of the table."""
        ...

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Some of these rows."""
        ...


class MappedWeights:
    """The weights of a checkpoint, through its family's table."""

    def __init__(
        self, source: TensorSource, pieces: Mapping[str, Sequence[Readable]], shapes: Shapes
    ) -> None:
        self._source = source
        self._pieces = pieces
        self._shapes = shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, read now and kept nowhere; see `Piece.read`."""
        slices, offset = [], 0
        for piece in self._pieces[name]:
            first, last = max(start - offset, 0), min(stop - offset, piece.rows)
            if first < last:
                slices.append(piece.read(self._source, first, last))
            offset += piece.rows
        return slices[0] if len(slices) == 1 else torch.cat(slices)

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a weight whose published tensors are all stored as codes in one format."""
        source, pieces = self._source, self._pieces[name]
        if not isinstance(source, Coded):
            return None
        return joint_format(
            piece.code_format(source) if isinstance(piece, Piece | AllExperts) else None
            for piece in pieces
        )

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a weight that has some."""
        if not isinstance(self._source, Coded):
            raise TypeError(f"{name}: its checkpoint stores no codes")
        parts, offset = [], 0
        for piece in self._pieces[name]:
            first, last = max(start - offset, 0), min(stop - offset, piece.rows)
            if first < last and isinstance(piece, Piece | AllExperts):
                parts.append(piece.codes(self._source, first, last))
            offset += piece.rows
        return join_codes(parts)


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
        WeightError: names weights that are missing, unexpected or of the wrong shape.
    """
    published = source.shapes()
    names = _table_names(published, table, base_model_prefix)
    claimed: set[str] = set()
    mapped: dict[str, Sequence[Readable]] = {}
    problems = []
    for ours, shape in expected.items():
        pieces: Sequence[Readable] = expert_pieces(table, ours, shape) or published_pieces(
            table, ours, parts.get(ours, shape[:1])
        )
        for piece in pieces:
            wanted = piece.stored_shapes(shape)
            claimed |= wanted.keys()
            problems += _differences(wanted, names, published)
        mapped[ours] = tuple(piece.renamed(names) for piece in pieces)
    unclaimed = {place: name for place, name in names.items() if place not in claimed}
    # Where the head is the embedding, a checkpoint may hold a copy of it.
    copies = {
        name: tied[target.name]
        for place, name in unclaimed.items()
        for target in targets(table, _entry(table, place) or place)
        if target.name in tied
    }
    for name, original in copies.items():
        problems += _misshapen(name, published[name], expected[original])
    for place, name in unclaimed.items():
        if name not in copies and not _is_dropped(table, place):
            problems.append(f"unexpected {name}")
    if problems:
        raise differing(problems)
    weights = MappedWeights(source, mapped, expected)
    for name, original in copies.items():
        _check_tied(source, name, weights, original)
    return weights


def differing(problems: Iterable[str]) -> WeightError:
    """The error of weights that are not those of a config; names the first `MOST_NAMED`."""
    found = sorted(set(problems))
    named = found[:MOST_NAMED]
    if len(found) > MOST_NAMED:
        named.append(f"and {len(found) - MOST_NAMED} more")
    return WeightError(
        f"weights: expected those that config.json describes, got {len(found)} differences: "
        f"{'; '.join(named)}. The checkpoint and its config do not belong together."
    )


def _differences(wanted: Shapes, names: Mapping[str, str], published: Shapes) -> list[str]:
    """What is wrong with the tensors that a piece reads."""
    found: list[str] = []
    for place, shape in wanted.items():
        if place in names:
            found += _misshapen(names[place], published[names[place]], shape)
        else:
            found.append(f"missing {place}")
    return found


def _entry(table: Table, name: str) -> str | None:
    """The name under which a table has a tensor: its own, or with `{}` for its numbers."""
    layer = name_template(name)[0]
    expert = name_template(layer)[0]
    return next((key for key in (name, layer, expert) if key in table), None)


def _is_dropped(table: Table, name: str) -> bool:
    entry = _entry(table, name)
    return entry is not None and all(target.spare for target in targets(table, entry))


def _misshapen(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> list[str]:
    return [] if got == want else [f"{name}: expected shape {want}, got {got}"]


def _table_names(published: Shapes, table: Table, prefix: str) -> dict[str, str]:
    """Published names by those of the table, without tensors under a prefix that it drops.

    A checkpoint without a head may leave out the prefix of the base model.
    """
    places = {}
    for name in published:
        if (place := _renamed_prefix(name, table)) is not None:
            places[_modern(place) if _entry(table, place) is None else place] = name
    bare = not any(place.startswith(f"{prefix}.") for place in places)
    return {
        f"{prefix}.{place}" if bare and _entry(table, place) is None else place: name
        for place, name in places.items()
    }


def _renamed_prefix(name: str, table: Table) -> str | None:
    """A name under the prefix that a table has in place of its own; None if that is dropped."""
    for key, prefix in table.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return None if prefix is None else f"{prefix}{name[len(key) - 1 :]}"
    return name


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

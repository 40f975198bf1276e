"""Weights of a checkpoint by our names, through the table of its family."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.expert_pieces import AllExperts, expert_pieces
from ortolan.modeling.checkpoint.packed.leftovers import advice, is_idle
from ortolan.modeling.checkpoint.padded_heads import padded_pieces
from ortolan.modeling.codes import CodedRows, CodeFormat, join_codes, joint_format
from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import (
    Coded,
    Piece,
    Shapes,
    Table,
    TensorSource,
    Turned,
    Weights,
    name_template,
    published_pieces,
    targets,
)

ROWS_AT_ONCE = 4096

MOST_NAMED = 16
"""Weights that an error message names."""

UNEXPECTED = "unexpected "
"""Start of the problem of a tensor that a model does not have."""

OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of norm parameters in checkpoints of the first BERTs, and in tables."""


class Readable(Protocol):
    """Rows of one of our weights, read from tensors of a checkpoint; see `Piece`."""

    @property
    def rows(self) -> int:
        """Number of our rows."""
        ...

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors it reads for a weight of shape `ours`, by their table names."""
        ...

    def renamed(self, names: Mapping[str, str]) -> "Readable":
        """Return the piece under the checkpoint's name instead of the table's."""
        ...

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Read some of these rows."""
        ...


class MappedWeights:
    """Weights of a checkpoint, mapped by the table of its family."""

    def __init__(
        self, source: TensorSource, pieces: Mapping[str, Sequence[Readable]], shapes: Shapes
    ) -> None:
        self._source = source
        self._pieces = pieces
        self._shapes = shapes

    @property
    def pieces(self) -> Mapping[str, Sequence[Readable]]:
        """Published tensors that fill the rows of each weight, in order."""
        return self._pieces

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, read on every call; see `Piece.read`."""
        slices, offset = [], 0
        for piece in self._pieces[name]:
            first, last = max(start - offset, 0), min(stop - offset, piece.rows)
            if first < last:
                slices.append(piece.read(self._source, first, last))
            offset += piece.rows
        return slices[0] if len(slices) == 1 else torch.cat(slices)

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a weight; None unless all its published tensors are codes of one format."""
        source, pieces = self._source, self._pieces[name]
        if not isinstance(source, Coded):
            return None
        return joint_format(
            piece.code_format(source) if isinstance(piece, Piece | AllExperts) else None
            for piece in pieces
        )

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a weight that has a format."""
        if not isinstance(self._source, Coded):
            raise TypeError(f"{name}: this checkpoint stores no codes")
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
    """Check a checkpoint against a model, and map its weights to our names."""
    published = source.shapes()
    names = _with_originals(_table_names(published, table, base_model_prefix), table, tied)
    claimed: set[str] = set()
    mapped: dict[str, Sequence[Readable]] = {}
    problems = []
    for ours, shape in expected.items():
        rows = parts.get(ours, shape[:1])
        pieces: Sequence[Readable] = (
            expert_pieces(table, ours, shape)
            or padded_pieces(table, ours, rows)
            or [_as_stored(piece, names, source) for piece in published_pieces(table, ours, rows)]
        )
        for piece in pieces:
            stored = piece.stored_shapes(shape)
            claimed |= stored.keys()
            problems += _differences(stored, names, published)
        mapped[ours] = tuple(piece.renamed(names) for piece in pieces)
    unclaimed = {place: name for place, name in names.items() if place not in claimed}
    # A checkpoint may contain a copy of a head that is tied to the embedding.
    copies = {
        name: tied[target.name]
        for place, name in unclaimed.items()
        for target in targets(table, _entry(table, place) or place)
        if target.name in tied
    }
    for name, original in copies.items():
        problems += _misshapen(name, published[name], expected[original])
    for place, name in unclaimed.items():
        if name not in copies and not _is_dropped(table, place) and not is_idle(name):
            problems.append(f"{UNEXPECTED}{name}")
    if problems:
        raise differing(problems)
    weights = MappedWeights(source, mapped, expected)
    for name, original in copies.items():
        _check_tied(source, name, weights, original)
    return weights


def _as_stored(piece: Piece, names: Mapping[str, str], source: TensorSource) -> Piece:
    """The piece, not transposed if its tensor was quantized with outputs first."""
    if not isinstance(source, Turned):
        return piece
    is_turned = source.has_outputs_first(names.get(piece.name, piece.name))
    return piece._replace(target=piece.target._replace(transposed=False)) if is_turned else piece


def differing(problems: Iterable[str]) -> WeightError:
    """Error for weights that do not match the config; names the first `MOST_NAMED`."""
    differences = sorted(set(problems))
    named = differences[:MOST_NAMED]
    if len(differences) > MOST_NAMED:
        named.append(f"and {len(differences) - MOST_NAMED} more")
    unexpected = (advice(problem) for problem in differences if problem.startswith(UNEXPECTED))
    cause = next(filter(None, unexpected), "The checkpoint and its config do not belong together.")
    return WeightError(
        f"weights: {len(differences)} differences from config.json: {'; '.join(named)}. {cause}"
    )


def _differences(expected: Shapes, names: Mapping[str, str], published: Shapes) -> list[str]:
    """Missing and misshapen tensors among those that a piece reads."""
    problems: list[str] = []
    for place, shape in expected.items():
        if place in names:
            problems += _misshapen(names[place], published[names[place]], shape)
        else:
            problems.append(f"missing {place}")
    return problems


def _entry(table: Table, name: str) -> str | None:
    """Table entry of a tensor: its name, or its name with `{}` for its numbers."""
    layer = name_template(name)[0]
    expert = name_template(layer)[0]
    return next((key for key in (name, layer, expert) if key in table), None)


def _is_dropped(table: Table, name: str) -> bool:
    entry = _entry(table, name)
    return entry is not None and all(target.spare for target in targets(table, entry))


def _misshapen(name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> list[str]:
    return [] if actual == expected else [f"{name}: expected shape {expected}, got {actual}"]


def _table_names(published: Shapes, table: Table, prefix: str) -> dict[str, str]:
    """Published names by their table names, without tensors under a prefix that is dropped.

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


def _with_originals(
    names: Mapping[str, str], table: Table, tied: Mapping[str, str]
) -> dict[str, str]:
    """Names, in which a shared tensor that is stored only as a copy is the original as well."""
    found = dict(names)
    for place, name in names.items():
        entry = _entry(table, place)
        if entry is not None and isinstance(original := table[entry], str):
            found.setdefault(original, name)
        for copy in targets(table, entry or place):
            shared = copy._replace(name=tied.get(copy.name, ""))
            for key in table:
                if shared in targets(table, key):
                    found.setdefault(key, name)
    return found


def _renamed_prefix(name: str, table: Table) -> str | None:
    """A name with its prefix replaced as the table says; None if the table drops it."""
    for key, prefix in table.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return None if prefix is None else f"{prefix}{name[len(key) - 1 :]}"
    return name


def _modern(name: str) -> str:
    """A name without the suffixes of `OLD_NAMES`."""
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _check_tied(source: TensorSource, head: str, weights: Weights, original: str) -> None:
    """Raise WeightError unless a tied weight equals the embedding."""
    rows = weights.shape(original)[0]
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        ours = weights.rows(original, start, stop)
        if not torch.equal(source.read(head, start, stop).float(), ours.float()):
            raise WeightError(
                f"{head}: the config says that it equals the embedding, but its values differ. If "
                "both were trained, set tie_word_embeddings to false in config.json."
            )

"""The weights of a model by our names, wherever they come from.

A family's table maps the names of a published checkpoint to ours; several published tensors
may fill the rows of one of ours, in the order of the table. `Weights` hides this, and hands
out any rows of any weight without holding another.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ortolan.modeling.errors import WeightError


class Target(NamedTuple):
    """Where a published tensor goes.

    Attributes:
        name: our parameter, `{}` standing for the layer.
        transposed: the checkpoint stores `(in, out)`, as GPT-2 does.
    """

    name: str
    transposed: bool = False


Table = Mapping[str, Target | None]
"""From a published name (`{}` for the layer) to ours; None for dropped on purpose."""


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

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = {name: p.detach().cpu() for name, p in module.named_parameters()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return tuple(self._tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight."""
        return self._tensors[name][start:stop]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one of our weights: a published tensor, perhaps transposed."""

    source_name: str
    rows: int
    transposed: bool


class MappedWeights:
    """The weights of a checkpoint, through its family's table."""

    def __init__(
        self, source: TensorSource, parts: Mapping[str, tuple[_Part, ...]], shapes: "Shapes"
    ) -> None:
        self._source = source
        self._parts = parts
        self._shapes = shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight, read now and kept nowhere."""
        pieces, offset = [], 0
        for part in self._parts[name]:
            first, last = max(start - offset, 0), min(stop - offset, part.rows)
            if first < last:
                axis = int(part.transposed)
                piece = self._source.read(part.source_name, first, last, axis=axis)
                pieces.append(piece.T if part.transposed else piece)
            offset += part.rows
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


Shapes = Mapping[str, tuple[int, ...]]


def read_weight(weights: Weights, name: str) -> Tensor:
    """A whole weight, in its stored dtype."""
    return weights.rows(name, 0, weights.shape(name)[0])


def map_weights(
    source: TensorSource, table: Table, expected: Shapes, *, base_model_prefix: str
) -> MappedWeights:
    """Check a checkpoint against a model and give access to its weights by our names.

    Args:
        source: the published tensors.
        table: the family's table.
        expected: the shape of every parameter of the model, by our names.
        base_model_prefix: what a checkpoint of the model without its head leaves out of names.

    Raises:
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
    """
    published = source.shapes()
    prefixed = _prefixed(published, table, base_model_prefix)
    parts: dict[str, dict[int, _Part]] = {}
    problems = []
    for name, shape in published.items():
        template, layer = _template(prefixed[name])
        if template not in table:
            problems.append(f"unexpected {name} {shape}")
            continue
        target = table[template]
        ours = target.name.format(layer) if target else ""
        if target is None or (ours == "head.weight" and ours not in expected):
            continue  # dropped on purpose, or a copy of a tied embedding
        rows = shape[1] if target.transposed else shape[0]
        order = list(table).index(template)
        parts.setdefault(ours, {})[order] = _Part(name, rows, target.transposed)
    ordered = {ours: tuple(by[i] for i in sorted(by)) for ours, by in parts.items()}
    problems += _mismatches(ordered, published, table, expected)
    if problems:
        raise WeightError(
            f"weights: expected those that config.json describes, got {len(problems)} "
            f"differences: {'; '.join(sorted(problems))}. "
            "The checkpoint and its config do not belong together."
        )
    return MappedWeights(source, ordered, expected)


def published_rows(
    table: Table, ours: str, parts: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, int, bool]]:
    """How one of our weights is cut for a checkpoint: (published name, rows, transposed)."""
    template, layer = _template(ours)
    names = [
        (published.format(layer), target.transposed)
        for published, target in table.items()
        if target is not None and target.name == template
    ]
    if not names:
        raise WeightError(
            f"{ours}: expected a place in the family's format, got none. "
            "This model cannot be saved in this format."
        )
    rows = parts[ours] if len(names) > 1 else (-1,)
    return [(name, n, transposed) for (name, transposed), n in zip(names, rows, strict=True)]


def _template(name: str) -> tuple[str, str]:
    """A name with its layer number replaced by `{}`, and that number (or nothing)."""
    found = re.search(r"(?<=\.)\d+(?=\.)", f".{name}")
    if found is None:
        return name, ""
    start, end = found.start() - 1, found.end() - 1
    return f"{name[:start]}{{}}{name[end:]}", found.group()


def _prefixed(names: Iterable[str], table: Table, prefix: str) -> dict[str, str]:
    """Names as the table has them: a checkpoint without a head may leave the prefix out."""
    names = list(names)
    bare = not any(name.startswith(f"{prefix}.") for name in names)
    return {
        name: f"{prefix}.{name}" if bare and _template(name)[0] not in table else name
        for name in names
    }


def _mismatches(
    parts: Mapping[str, tuple[_Part, ...]], published: Shapes, table: Table, expected: Shapes
) -> list[str]:
    """What is missing or of the wrong shape, in the words of the checkpoint where possible."""
    problems = []
    for ours, shape in expected.items():
        template, layer = _template(ours)
        wanted = [p.format(layer) for p, t in table.items() if t and t.name == template]
        found = parts.get(ours, ())
        if len(found) < len(wanted) or not found:
            have = {part.source_name for part in found}
            missing = [n for n in wanted if not any(h == n or n.endswith(f".{h}") for h in have)]
            problems += [f"missing {name}" for name in missing or [ours]]
            continue
        columns = {
            published[p.source_name][::-1][1:] if p.transposed else published[p.source_name][1:]
            for p in found
        }
        if columns != {shape[1:]} or sum(p.rows for p in found) != shape[0]:
            got = ", ".join(f"{p.source_name} {published[p.source_name]}" for p in found)
            problems.append(f"{ours}: expected shape {shape}, got {got}")
    extra = set(parts) - set(expected)
    problems += [f"unexpected {p.source_name}" for ours in extra for p in parts[ours]]
    return problems

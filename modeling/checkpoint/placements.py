"""How published tensors become one of our weights, as operations on lazy tensors.

Shape letters: N experts, R rows per expert, K columns, H heads, D channels of a published head, P
channels of ours.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.weights import (
    HeadPadding,
    Piece,
    Table,
    Target,
    name_template,
    published_pieces,
    targets,
)

Shape = tuple[int, ...]


class Placement(NamedTuple):
    """Published tensors that make up a part of one of our weights.

    Attributes:
        stored: their shapes, by their names in the table.
        ours: computes that part from them.
    """

    stored: Mapping[str, Shape]
    ours: Callable[[Sequence[Tensor]], Tensor]


def placements(
    table: Table,
    ours: str,
    shape: Shape,
    parts: tuple[int, ...],
    *,
    has_outputs_first: Callable[[str], bool],
) -> list[Placement]:
    """The placements of a weight whose rows are concatenated from `parts`.

    Args:
        table: table of the family.
        ours: name of the weight.
        shape: shape of the weight.
        parts: numbers of rows.
        has_outputs_first: whether a tensor, by its name in the table, was quantized with its
            outputs first, even if it is published transposed.
    """
    template, layer = name_template(ours)
    places = {
        name: target for name in table for target in targets(table, name) if target.name == template
    }
    apart = [name for name in places if name.count("{}") == 2]
    if apart:
        names = [[name.format(layer, number) for number in range(shape[0])] for name in apart]
        return [_experts_apart(names, shape)]
    together = [
        _experts_together(name.format(layer), target, shape)
        for name, target in places.items()
        if target.halves or (target.transposed and len(shape) == 3)
    ]
    if together:
        return together
    padded = {name: target.heads for name, target in places.items() if target.heads}
    if padded:
        rows = parts if len(padded) > 1 else (sum(parts),)
        return [
            _padded_heads(name.format(layer), padding, (count, *shape[1:]))
            for (name, padding), count in zip(padded.items(), rows, strict=True)
        ]
    return [
        _as_stored(piece, shape, is_turned=has_outputs_first(piece.name))
        for piece in published_pieces(table, ours, parts)
    ]


def _as_stored(piece: Piece, shape: Shape, *, is_turned: bool) -> Placement:
    """Rows of one published tensor."""
    if piece.target.zeros:
        return Placement({}, lambda _: torch.zeros(piece.rows))
    if is_turned:
        piece = piece._replace(target=piece.target._replace(transposed=False))
    stored = {piece.name: piece.published_shape(shape)}
    return Placement(stored, lambda tensors: piece.ours(tensors[0]))


def _experts_apart(names: Sequence[Sequence[str]], shape: Shape) -> Placement:
    """Experts `(R, K)` stored on their own; rows of several matrices alternate in ours."""
    height = shape[1] // len(names)
    every = [name for matrix in names for name in matrix]

    def ours(tensors: Sequence[Tensor]) -> Tensor:
        count = shape[0]
        firsts = range(0, len(tensors), count)
        matrices = [torch.stack(list(tensors[first : first + count])) for first in firsts]
        return torch.stack(matrices, 2).flatten(1, 2) if len(matrices) > 1 else matrices[0]

    return Placement(dict.fromkeys(every, (height, *shape[2:])), ours)


def _experts_together(name: str, target: Target, shape: Shape) -> Placement:
    """All experts in one tensor, perhaps as `(N, K, R)`, or with gate rows before up rows."""
    count, rows, *columns = shape

    def ours(tensors: Sequence[Tensor]) -> Tensor:
        experts_NRK = tensors[0].mT if target.transposed else tensors[0]
        if not target.halves:
            return experts_NRK
        return torch.unflatten(experts_NRK, 1, (2, -1)).transpose(1, 2).flatten(1, 2)

    stored = (count, *columns, rows) if target.transposed else shape
    return Placement({name: stored}, ours)


def _padded_heads(name: str, padding: HeadPadding, shape: Shape) -> Placement:
    """A projection whose heads are wider in Ortolan, for kernels that need certain widths.

    Channels of zeros change nothing: they add nothing to scores, and what they attend to is not
    read out.
    """
    axis, own, theirs = padding.axis, padding.ours, padding.published
    stored = list(shape)
    stored[axis] = shape[axis] // own * theirs

    def ours(tensors: Sequence[Tensor]) -> Tensor:
        heads = torch.unflatten(tensors[0], axis, (-1, theirs))
        behind = (0, 0) * (heads.dim() - axis - 2)
        return F.pad(heads, (*behind, 0, own - theirs)).flatten(axis, axis + 1)

    return Placement({name: tuple(stored)}, ours)

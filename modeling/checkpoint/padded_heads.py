"""Projections whose heads are wider in Ortolan than in the checkpoint.

Kernels need heads of certain widths. Channels of zeros make them wider without a change: they add
nothing to scores, and what they attend to is not read out.

Shape letters: N rows, K columns, H heads, D channels of a published head, P channels of ours.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.weights import HeadPadding, Table, TensorSource, name_template, targets


class PaddedHeads(NamedTuple):
    """Rows of one of our weights: a published tensor with wider heads.

    Attributes:
        name: name of the published tensor.
        rows: number of our rows.
        padding: widths of the heads.
    """

    name: str
    rows: int
    padding: HeadPadding

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shape of the published tensor for a weight of shape `ours`, by its table name."""
        shape = [self.rows, *ours[1:]]
        axis = self.padding.axis
        shape[axis] = shape[axis] // self.padding.ours * self.padding.published
        return {self.name: tuple(shape)}

    def renamed(self, names: Mapping[str, str]) -> "PaddedHeads":
        """Return the piece under the checkpoint's name instead of the table's."""
        return self._replace(name=names.get(self.name, self.name))

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Our rows `[start:stop]`, in their stored dtype."""
        own, theirs = self.padding.ours, self.padding.published
        zeros = own - theirs
        if self.padding.axis == 1:
            stored = source.read(self.name, start, stop)
            heads_NHD = stored.reshape(len(stored), -1, theirs)
            return F.pad(heads_NHD, (0, zeros)).flatten(1)
        first, last = start // own, math.ceil(stop / own)
        stored = source.read(self.name, first * theirs, last * theirs)
        columns = (0, 0) * (stored.ndim - 1)  # a bias has none
        heads = stored.reshape(-1, theirs, *stored.shape[1:])
        padded = F.pad(heads, (*columns, 0, zeros)).flatten(0, 1)
        return padded[start - first * own : stop - first * own]


def padded_pieces(table: Table, ours: str, parts: tuple[int, ...]) -> tuple[PaddedHeads, ...]:
    """Published tensors that make up a weight with padded heads; empty for other weights."""
    template, layer = name_template(ours)
    padded = [
        (name, target.heads)
        for name in table
        for target in targets(table, name)
        if target.name == template and target.heads
    ]
    rows = parts if len(padded) > 1 else (sum(parts),)
    return tuple(
        PaddedHeads(name.format(layer), count, padding)
        for (name, padding), count in zip(padded, rows, strict=False)
    )

"""Experts of a layer in a checkpoint, converted to ours: stacked, gate and up rows alternating.

Checkpoints store each matrix of each expert as a tensor, or all experts in one. Both are read one
expert at a time.

Shape letters: N experts, R rows per expert, K columns.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.codes import CodedRows, CodeFormat
from ortolan.modeling.weights import Coded, Table, Target, TensorSource, name_template, targets


class OneExpert(NamedTuple):
    """One expert, stored on its own, `(R, K)`.

    Attributes:
        names: tensors whose rows alternate in it.
        height: rows per tensor.
    """

    names: tuple[str, ...]
    height: int

    @property
    def rows(self) -> int:
        """One expert."""
        return 1

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors it reads for a weight of shape `ours`, by their table names."""
        return dict.fromkeys(self.names, (self.height, *ours[2:]))

    def renamed(self, names: Mapping[str, str]) -> "OneExpert":
        """Return the piece under the checkpoint's name instead of the table's."""
        return self._replace(names=tuple(names.get(name, name) for name in self.names))

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """The expert, `(1, R, K)`, in its stored dtype."""
        parts = [source.read(name, 0, self.height) for name in self.names]
        return torch.stack(parts, 1).flatten(0, 1)[None]


class AllExperts(NamedTuple):
    """All experts in one tensor, `(N, R, K)`.

    Attributes:
        name: name of the tensor.
        rows: N.
        target: whether it is stored as `(N, K, R)`, or with gate rows before up rows.
    """

    name: str
    rows: int
    target: Target

    def stored_shapes(self, ours: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors it reads for a weight of shape `ours`, by their table names."""
        count, rows, *columns = ours
        return {self.name: (count, *columns, rows) if self.target.transposed else ours}

    def renamed(self, names: Mapping[str, str]) -> "AllExperts":
        """Return the piece under the checkpoint's name instead of the table's."""
        return self._replace(name=names.get(self.name, self.name))

    def read(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Experts `[start:stop]`, in their stored dtype."""
        stored = source.read(self.name, start, stop)
        experts_NRK = stored.mT if self.target.transposed else stored
        if not self.target.halves:
            return experts_NRK
        gate, up = experts_NRK.chunk(2, 1)
        return torch.stack((gate, up), 2).flatten(1, 2)

    def code_format(self, source: Coded) -> CodeFormat | None:
        """Format of their codes; None unless rows are stored as rows, in our order."""
        is_as_stored = self.target.transposed and not self.target.halves
        return source.code_format(self.name) if is_as_stored else None

    def codes(self, source: Coded, start: int, stop: int) -> CodedRows:
        """Codes of experts `[start:stop]`, `((stop - start) * R, K)`."""
        return source.codes(self.name, start, stop)


def expert_pieces(
    table: Table, ours: str, shape: tuple[int, ...]
) -> tuple[OneExpert, ...] | tuple[AllExperts, ...]:
    """Published tensors that make up a weight of experts; empty for other weights.

    Args:
        table: table of the family.
        ours: name of the weight.
        shape: shape of the weight, `(N, R, K)`, or `(N, R)` for a bias.
    """
    template, layer = name_template(ours)
    places = {
        name: target for name in table for target in targets(table, name) if target.name == template
    }
    count = shape[0]
    apart = [name for name in places if name.count("{}") == 2]
    if apart:
        height = shape[1] // len(apart)
        return tuple(
            OneExpert(tuple(name.format(layer, number) for name in apart), height)
            for number in range(count)
        )
    return tuple(
        AllExperts(name.format(layer), count, target)
        for name, target in places.items()
        if target.halves or (target.transposed and len(shape) == 3)
    )

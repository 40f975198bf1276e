"""A table of the positions of patches, interpolated to images of another size.

Shape letters: N places, E model width, Y rows, X columns.
"""

from functools import cache
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import SquareTable
from ortolan.modeling.weights import TensorSource

NAME = "embeddings.position_embeddings"
"""End of the published name of a table: a class token, then patches row by row."""


class ResizedPositions:
    """Tensors of a checkpoint, whose table of positions is interpolated.

    A table of another size than the config says is left as it is, to be reported.
    """

    def __init__(self, stored: TensorSource, table: SquareTable, grid: tuple[int, int]) -> None:
        self._stored, self._table, self._grid = stored, table, grid
        self._shapes = stored.shapes()
        rows = 1 + table.side**2
        self._names = {
            name
            for name, shape in self._shapes.items()
            if name.endswith(NAME) and len(shape) == 3 and shape[:2] == (1, rows)
        }
        for name in self._names:
            self._shapes[name] = (1, 1 + prod(grid), self._shapes[name][2])
        self._whole = cache(self._interpolated)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`; interpolated ones are float32."""
        if name not in self._names:
            return self._stored.read(name, start, stop, axis=axis)
        return self._whole(name).narrow(axis, start, stop - start)

    def _interpolated(self, name: str) -> Tensor:
        side = self._table.side
        stored_1NE = self._stored.read(name, 0, 1).float()
        table_1EYX = torch.unflatten(stored_1NE[:, 1:], 1, (side, side)).permute(0, 3, 1, 2)
        resized_1EYX = F.interpolate(
            table_1EYX, self._grid, mode="bicubic", antialias=self._table.antialiased
        )
        return torch.cat((stored_1NE[:, :1], resized_1EYX.flatten(2).transpose(1, 2)), 1)

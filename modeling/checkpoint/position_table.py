"""A table of the positions of patches, interpolated to images of another size.

Shape letters: N places, E model width, Y rows, X columns.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F

from ortolan.modeling.config import SquareTable
from ortolan.modeling.lazy_tensor import LazyTensor

NAME = "embeddings.position_embeddings"
"""End of the published name of a table: a class token, then patches row by row."""


def resized_positions(
    stored: Mapping[str, LazyTensor], table: SquareTable, grid: tuple[int, int]
) -> dict[str, LazyTensor]:
    """Tensors of a checkpoint, whose table of positions is interpolated in float32.

    A table of another size than the config says is left as it is, to be reported.
    """

    def resized(stored_1NE: LazyTensor) -> LazyTensor:
        table_1NE = stored_1NE.float()
        places_1YXE = torch.unflatten(table_1NE[:, 1:], 1, (table.side, table.side))
        places_1EYX = places_1YXE.permute(0, 3, 1, 2)
        resized_1EYX = F.interpolate(places_1EYX, grid, mode="bicubic", antialias=table.antialiased)
        token_and_patches = (table_1NE[:, :1], resized_1EYX.flatten(2).transpose(1, 2))
        return cast(LazyTensor, torch.cat(token_and_patches, 1))

    return {
        name: resized(tensor)
        if name.endswith(NAME) and tensor.shape[:-1] == (1, 1 + table.side**2)
        else tensor
        for name, tensor in stored.items()
    }

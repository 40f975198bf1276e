"""Patches of an image of any proportions, and their positions.

Shape letters: C pixel channels, Y image height, X image width, F numbers of a patch, M squares of
patches, J patches of a square, S side of the table of positions, E model width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import GridInput, GridPositions


class Grid(NamedTuple):
    """Place of each patch in a table of positions, as weights of its rows and columns.

    Attributes:
        rows: `(M, J, S)`.
        columns: `(M, J, S)`.
        positions: int64 `(M, J, 3)`; time 0, row and column, for rotary positions with axes.
    """

    rows: Tensor
    columns: Tensor
    positions: Tensor | None = None

    @classmethod
    def of(cls, size: tuple[int, int], side: int, positions: GridPositions) -> "Grid":
        """Interpolate a table to a grid of `size` rows and columns, in squares of a side."""
        high, wide = size
        rows_YS = interpolated(high, positions)[:, None].expand(-1, wide, -1)
        columns_XS = interpolated(wide, positions)[None].expand(high, -1, -1)
        times = torch.zeros(high, wide, dtype=torch.int64)
        places = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
        positions_YXA = torch.stack((times, *places), -1)
        return cls(
            in_squares(rows_YS, side),
            in_squares(columns_XS, side),
            in_squares(positions_YXA, side),
        )

    def flat_positions(self) -> Tensor | None:
        """Positions `(1, T, 3)` of all patches."""
        if self.positions is None:
            return None
        return self.positions.reshape(1, -1, self.positions.shape[-1])


class GridEmbedding(nn.Embedding):
    """Learned table of positions that is interpolated to the grid of an image."""

    def forward(self, grid: Grid) -> Tensor:  # type: ignore[override]
        """Positions `(M, J, E)` of patches."""
        places_MJSS = grid.rows.unsqueeze(-1) * grid.columns.unsqueeze(-2)
        # with a size to infer, the graph computes none
        places = places_MJSS.reshape(-1, grid.rows.shape[1], self.num_embeddings)
        return torch.matmul(places, self.weight)


class FlatPatchEmbedding(nn.Module):
    """Linear embedding of flat patches."""

    def __init__(self, config: GridInput, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(config.numbers, width, bias=config.bias)

    def forward(self, patches_MJF: Tensor) -> Tensor:
        """`(M, J, F)` to `(M, J, E)`."""
        out: Tensor = self.projection(patches_MJF)
        return out


def interpolated(count: int, positions: GridPositions) -> Tensor:
    """Weights `(count, S)` of the rows of a table for a grid with `count` rows."""
    side = positions.side
    if positions.interpolation == "corners":
        places = torch.linspace(0, side - 1, count)[:, None]
        return (1 - (places - torch.arange(side)).abs()).clamp(min=0)
    table_SS = torch.eye(side)[None, None]
    return F.interpolate(table_SS, (count, side), mode="bilinear", antialias=True)[0, 0]


def in_squares(values_YXF: Tensor, side: int) -> Tensor:
    """Values of a grid `(rows, columns, F)` as `(M, side ** 2, F)`, square by square."""
    high, wide, size = values_YXF.shape
    squares = values_YXF.reshape(high // side, side, wide // side, side, size).transpose(1, 2)
    return squares.reshape(-1, side**2, size)


def flat_patches(pixels_CYX: Tensor, config: GridInput) -> Tensor:
    """Cut pixels of whole squares of patches into flat patches `(M, J, F)`."""
    (channels, height, width), size = pixels_CYX.shape, config.patch_size
    if height % (size * config.merge) or width % (size * config.merge):
        raise ValueError(
            f"pixels: both sides must be multiples of {size * config.merge} (got {height} by "
            f"{width}). Resize the image."
        )
    grid = pixels_CYX.reshape(channels, height // size, size, width // size, size)
    if config.layout == "channels_last":
        patches = grid.permute(1, 3, 2, 4, 0)
    else:
        patches = grid.permute(1, 3, 0, 2, 4).unsqueeze(3)
        patches = patches.expand(-1, -1, -1, config.frames, -1, -1)
    return in_squares(patches.flatten(2), config.merge)

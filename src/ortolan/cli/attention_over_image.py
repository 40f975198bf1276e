"""A picture of what a model looks at: attention over the patches of an image, drawn on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ortolan.cli.attention_picture import DPI, Panel, check_size, save
from ortolan.runtime import InputError
from ortolan.runtime.bundle.sources import ImageSource
from ortolan.runtime.inputs.images import Image, read_pixels

SIDE_INCHES, TITLE_INCHES = 2.2, 0.35

COLUMNS = 6

TRAINED = (0, 1, 2, 5)
"""Numbers of trained tokens before the patches: a class token, and a distillation token or four
registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaze:
    """Where a token looks.

    Attributes:
        title: of the layer, the head and the token.
        shares: probability of each patch, `(rows, columns)`.
    """

    title: str
    shares: NDArray[np.float32]


def gazes(panels: Sequence[Panel], source: ImageSource) -> list[Gaze]:
    """The shares of the patches for each token that tells what the model sees.

    In a decoder each written token, in an encoder the class token. Without one, the mean of all
    patches.
    """
    found = []
    for panel in panels:
        rows, columns, first = _grid(panel.shares.shape[1], source)
        looks: dict[str, NDArray[np.float32]]
        if panel.row.endswith(".cross"):
            looks = dict(zip(_distinct(panel.queries), panel.shares, strict=True))
        elif first:
            looks = {"class token": panel.shares[0]}
        else:
            looks = {"mean of patches": panel.shares.mean(0)}
        found += [
            Gaze(title=f"{panel.title}\n{name}", shares=shares[first:].reshape(rows, columns))
            for name, shares in looks.items()
        ]
    return found


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{number} {name}" for number, name in enumerate(names)]


def _grid(keys: int, source: ImageSource) -> tuple[int, int, int]:
    """Rows and columns of the patches, and the number of trained tokens before them."""
    for first in TRAINED:
        columns = round(math.sqrt((keys - first) * source.width / source.height))
        if columns and columns * round(columns * source.height / source.width) == keys - first:
            return (keys - first) // columns, columns, first
    raise InputError(
        f"--over-image: {keys} keys are no grid of patches of an image of {source.height} by "
        f"{source.width} pixels. Leave it out."
    )


def draw_over(image: Image, source: ImageSource, found: Sequence[Gaze], path: Path) -> None:
    """Write a picture of an image, as the encoder reads it, under each gaze.

    Bright patches have the largest shares of the gaze.
    """
    columns = min(COLUMNS, len(found))
    lines = math.ceil(len(found) / columns)
    width, height = columns * SIDE_INCHES, lines * (SIDE_INCHES + TITLE_INCHES)
    check_size(width, height)
    seen_HWC = _shown(read_pixels(image, source), source)
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False)
    extent = (0, source.width, source.height, 0)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, gaze in zip(grid.flat, found, strict=False):
        axes.imshow(seen_HWC, extent=extent, cmap="gray", vmin=0, vmax=1)
        axes.imshow(gaze.shares, extent=extent, cmap="inferno", alpha=0.6, interpolation="nearest")
        axes.set_title(gaze.title, fontsize=7, parse_math=False)
    save(figure, path)


def _shown(pixels_CHW: NDArray[np.float32], source: ImageSource) -> NDArray[np.float32]:
    """Colors from 0 to 1 of normalized pixels; grey `(H, W)` for images without colors."""
    mean, std = (np.array(value, np.float32)[:, None, None] for value in (source.mean, source.std))
    colors_CHW = ((pixels_CHW * std + mean) / source.scale / 255).clip(0, 1)
    shown: NDArray[np.float32] = (
        colors_CHW[:3].transpose(1, 2, 0) if source.channels >= 3 else colors_CHW[0]
    )
    return shown

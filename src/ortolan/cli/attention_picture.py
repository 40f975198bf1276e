"""Pictures of attention maps: a grid of heat maps, or what a model looks at in an image."""

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ortolan.runtime import InputError
from ortolan.runtime.attention_maps import AttentionMaps
from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.inputs.images import Image, read_pixels

INCHES_PER_TOKEN = 0.17  # a line at 7 points, with spacing
INCHES_PER_LETTER = 0.075
TITLE_INCHES, MARGIN_INCHES = 0.25, 0.4
MIN_PANEL_INCHES = 1.2
SIDE_INCHES = 2.2  # of an image
IMAGES_PER_LINE = 6
MAX_LABEL_LETTERS = 16
DPI = 110
MAX_PIXELS = 100_000_000  # maximum pixels of a picture; it needs 400 MB while it is drawn

TRAINED = (0, 1, 2, 5)
"""Numbers of trained tokens before the patches: a class token, and a distillation token or four
registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One heat map."""

    row: str  # name of its map; panels of the same map form a row
    title: str
    shares: NDArray[np.float32]  # probabilities, (queries, keys), or as patches lie in an image
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def choose(
    maps: AttentionMaps,
    *,
    kind: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    mean: bool,
) -> list[Panel]:
    """Return the panels of the chosen maps."""
    kinds = {name.rpartition(".")[2] for name in maps.maps}
    # a memory is read and written in the same slots, so both are shown
    wanted = {kind} if kind else {"cross"} & kinds or {"read", "write"} & kinds or {"self"}
    if not wanted <= kinds:
        raise InputError(f"kind: expected {' or '.join(sorted(kinds))}, got {kind}.")
    names = [name for name in maps.maps if name.rpartition(".")[2] in wanted]
    _check("layers", layers, sorted({int(name.split(".")[1]) for name in names}))
    panels = []
    for name in names:
        side, layer, of = name.split(".")
        if layers is not None and int(layer) not in layers:
            continue
        maps_HQK = maps.maps[name]
        _check("heads", heads, range(len(maps_HQK)))
        chosen = range(len(maps_HQK)) if heads is None else heads
        titled = {f"head {head}": maps_HQK[head] for head in chosen}
        if mean:
            titled = {"mean of heads": np.mean([*titled.values()], axis=0)}
        panels += [
            Panel(
                row=name,
                title=f"{side} layer {layer}, {f'{of} ' if of in ('read', 'write') else ''}{title}",
                shares=shares,
                queries=maps.queries[name],
                keys=maps.keys[name],
            )
            for title, shares in titled.items()
        ]
    return panels


def _check(name: str, chosen: Sequence[int] | None, valid: Sequence[int]) -> None:
    for number in chosen or ():
        if number not in valid:
            raise InputError(f"{name}: expected {valid[0]} to {valid[-1]}, got {number}.")


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write a picture of the panels, a line per map, in the format of the file name's suffix.

    The darkest color is the largest probability of all panels.
    """
    rows: dict[str, list[Panel]] = {}
    for panel in panels:
        rows.setdefault(panel.row, []).append(panel)
    columns = max(map(len, rows.values()))
    widths, heights = zip(*map(_inches, panels), strict=True)
    figure, grid = _figure(len(rows), columns, max(widths), max(heights))
    darkest = max(float(panel.shares.max()) for panel in panels)
    for line, of_row in zip(grid, rows.values(), strict=True):
        for axes, panel in zip(line, of_row, strict=False):
            _panel(axes, panel, darkest)
    _save(figure, path)


def _figure(lines: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure and its grid of empty axes, each of these inches."""
    width, height = width * columns, height * lines
    if width * height * DPI**2 > MAX_PIXELS:
        raise InputError(
            f"The picture would have more than {MAX_PIXELS} pixels ({math.ceil(width * DPI)} by "
            f"{math.ceil(height * DPI)}). Choose --layers and --heads, or use a shorter text."
        )
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure, grid


def _inches(panel: Panel) -> tuple[float, float]:
    """Width and height of a panel with its labels."""
    sides = (panel.keys, panel.queries)
    inside = [max(MIN_PANEL_INCHES, INCHES_PER_TOKEN * len(names)) for names in sides]
    labels = [INCHES_PER_LETTER * max(len(_short(text)) for text in names) for names in sides]
    width = inside[0] + labels[1] + MARGIN_INCHES
    return width, inside[1] + labels[0] + TITLE_INCHES + MARGIN_INCHES


def _panel(axes: Axes, panel: Panel, darkest: float) -> None:
    axes.set_axis_on()
    axes.imshow(panel.shares, cmap="Blues", vmin=0, vmax=darkest, aspect="auto")
    axes.set_title(panel.title, fontsize=8)
    # matplotlib would typeset text between dollar signs, which are ordinary tokens here
    plain: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    keys, queries = [_short(text) for text in panel.keys], [_short(text) for text in panel.queries]
    axes.set_xticks(range(len(keys)), keys, rotation=90, **plain)
    axes.set_yticks(range(len(queries)), queries, **plain)
    axes.tick_params(length=0)


def _short(text: str) -> str:
    """Shorten a token to one line of limited length."""
    shown = text.encode("unicode_escape").decode() if not text.isprintable() else text
    fits = len(shown) <= MAX_LABEL_LETTERS
    return shown if fits else f"{shown[: MAX_LABEL_LETTERS - 1]}…"


def _save(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise InputError(
                f"{path}: cannot write the picture: {reason}. Choose a writable folder and a name "
                "that ends in .png, .svg or .pdf."
            ) from error
    if any("missing from font" in str(warning.message) for warning in caught):
        print("[the font lacks some characters of the labels]", file=sys.stderr)


def gazes(panels: Sequence[Panel], source: ImageSource) -> list[Panel]:
    """Shares of the patches, as they lie in the image, for each token that tells what is seen.

    In a decoder each written token, in an encoder the class token. Without one, the mean of all
    patches.
    """
    found = []
    for panel in panels:
        rows, columns, first = _grid(panel.shares.shape[1], source)
        looks: dict[str, NDArray[np.float32]]
        if panel.row.endswith(".cross"):
            names = [f"{number} {name}" for number, name in enumerate(panel.queries)]
            looks = dict(zip(names, panel.shares, strict=True))
        elif first:
            looks = {"class token": panel.shares[0]}
        else:
            looks = {"mean of patches": panel.shares.mean(0)}
        for name, shares in looks.items():
            patches = shares[first:].reshape(rows, columns)
            found.append(replace(panel, title=f"{panel.title}\n{name}", shares=patches))
    return found


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


def draw_over(image: Image, source: ImageSource, found: Sequence[Panel], path: Path) -> None:
    """Write a picture of an image, as the encoder reads it, under each gaze.

    Bright patches have the largest shares of the gaze.
    """
    columns = min(IMAGES_PER_LINE, len(found))
    lines = math.ceil(len(found) / columns)
    figure, grid = _figure(lines, columns, SIDE_INCHES, SIDE_INCHES + 0.35)
    seen_HWC = _shown(read_pixels(image, source), source)
    extent = (0, source.width, source.height, 0)
    for axes, gaze in zip(grid.flat, found, strict=False):
        axes.imshow(seen_HWC, extent=extent, cmap="gray", vmin=0, vmax=1)
        axes.imshow(gaze.shares, extent=extent, cmap="inferno", alpha=0.6, interpolation="nearest")
        axes.set_title(gaze.title, fontsize=7, parse_math=False)
    _save(figure, path)


def _shown(pixels_CHW: NDArray[np.float32], source: ImageSource) -> NDArray[np.float32]:
    """Colors from 0 to 1 of normalized pixels; grey `(H, W)` for images without colors."""
    mean, std = (np.array(value, np.float32)[:, None, None] for value in (source.mean, source.std))
    colors_CHW = ((pixels_CHW * std + mean) / source.scale / 255).clip(0, 1)
    shown: NDArray[np.float32] = (
        colors_CHW[:3].transpose(1, 2, 0) if source.channels >= 3 else colors_CHW[0]
    )
    return shown

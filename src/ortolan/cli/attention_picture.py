"""A picture of attention maps: a grid of heat maps, one row per layer, one column per head."""

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ortolan.runtime import InputError
from ortolan.runtime.attention_maps import AttentionMaps

INCHES_PER_TOKEN = 0.17
"""Height of a line at 7 points, with spacing."""

MIN_PANEL_INCHES = 1.2

MARGIN_INCHES = 0.4
"""Margin around a panel, without its labels."""

INCHES_PER_LETTER = 0.075

MAX_LABEL_LETTERS = 16

DPI = 110

MAX_PIXELS = 100_000_000
"""Maximum pixels of a picture; it needs 400 MB while it is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One heat map.

    Attributes:
        row: name of its map; panels of the same map form a row.
        shares: attention probabilities, `(queries, keys)`.
    """

    row: str
    title: str
    shares: NDArray[np.float32]
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
    """Write a picture of the panels, in the format of the file name's suffix.

    The darkest color is the largest probability of all panels.
    """
    rows = list(dict.fromkeys(panel.row for panel in panels))
    columns = max(sum(panel.row == row for panel in panels) for row in rows)
    width = max(_width(panel) for panel in panels) * columns
    height = max(_height(panel) for panel in panels) * len(rows)
    check_size(width, height)
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    darkest = max(float(panel.shares.max()) for panel in panels)
    for row, line in zip(rows, grid, strict=True):
        of_row = [panel for panel in panels if panel.row == row]
        for axes, panel in zip(line, of_row, strict=False):
            _panel(axes, panel, darkest)
        for axes in line[len(of_row) :]:
            axes.set_axis_off()
    save(figure, path)


def check_size(width: float, height: float) -> None:
    """Reject a picture that is too large."""
    if width * height * DPI**2 > MAX_PIXELS:
        raise InputError(
            f"The picture would have more than {MAX_PIXELS} pixels ({math.ceil(width * DPI)} by "
            f"{math.ceil(height * DPI)}). Choose --layers and --heads, or use a shorter text."
        )


def _width(panel: Panel) -> float:
    labels = INCHES_PER_LETTER * max(len(_short(text)) for text in panel.queries)
    return max(MIN_PANEL_INCHES, INCHES_PER_TOKEN * len(panel.keys)) + labels + MARGIN_INCHES


def _height(panel: Panel) -> float:
    labels = INCHES_PER_LETTER * max(len(_short(text)) for text in panel.keys)
    title = 0.25
    inside = max(MIN_PANEL_INCHES, INCHES_PER_TOKEN * len(panel.queries))
    return inside + labels + title + MARGIN_INCHES


def _panel(axes: Axes, panel: Panel, darkest: float) -> None:
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format of the file name's suffix."""
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

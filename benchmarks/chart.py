"""Charts of measurements."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

from report import Speed

FIRST, OTHER = "#1f6f8b", "#b8c4ca"  # the peer that the others are compared with stands out
BAR_INCHES = 0.36
FRAME_INCHES = 1.1
WIDTH_INCHES = 4.6
FRONTIER_INCHES = (8, 5)
LENGTHS_INCHES = (11, 8)
LABEL_OFFSETS = (3, -4, 12, -13, 21, -22)  # points above or below
OURS = ("ortolan", "bundle")
SPEED = "tokens per second"

SIZE = ("file_bytes", 1e6, "MB of weights")
TIME = ("export_s", 1.0, "seconds to export")
"""Costs: key in a row, unit and label."""

SHADES = (FIRST, "#0b3c4d", "#3fa7c4", "#7a4fa3", "#2f9e77", "#5566cc")
GREYS = ("#8a979e", "#b08d57", "#9a7b8f", "#7d8c6a")
MARKERS = ("s", "^", "D", "P")


def draw(speeds: Sequence[Speed], path: Path, *, title: str, highlighted: str) -> None:
    """Write a picture of speeds: prefill above decoding, one column per prompt length.

    Args:
        speeds: one per peer and length; peers keep their order, from the top.
        path: the file.
        title: title of the picture.
        highlighted: prefix of the names of highlighted peers.
    """
    lengths = list(dict.fromkeys(speed.prompt_tokens for speed in speeds))
    bars = len(speeds) // len(lengths)
    height = 2 * (bars * BAR_INCHES + FRAME_INCHES)
    figure = Figure(figsize=(WIDTH_INCHES * len(lengths) + 1, height), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    axes = figure.subplots(2, len(lengths), squeeze=False, sharey=True)
    for column, length in enumerate(lengths):
        own = [speed for speed in speeds if speed.prompt_tokens == length]
        names = [speed.peer for speed in own]
        colors = [FIRST if name.startswith(highlighted) else OTHER for name in names]
        panels = (
            (f"prefill of {length} tokens", [speed.prefill_per_s for speed in own]),
            (f"decoding after {length} tokens", [speed.decode_per_s for speed in own]),
        )
        for row, (label, values) in enumerate(panels):
            panel(axes[row, column], names, values, colors=colors, label=label, unit=SPEED)
    figure.savefig(path, dpi=150)


def draw_bars(
    panels: Mapping[str, Mapping[str, float]],
    path: Path,
    *,
    title: str,
    unit: str,
) -> None:
    """Write a picture of panels, each with one bar per name; Ortolan's are colored.

    Args:
        panels: by their titles, values by name.
        path: the file.
        title: title of the picture.
        unit: of the values.
    """
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    bars = max(map(len, panels.values()))
    size = (WIDTH_INCHES * columns + 1, rows * (bars * BAR_INCHES + FRAME_INCHES))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize="medium")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (label, values) in zip(grid.flat, panels.items(), strict=False):
        colors = [FIRST if name.startswith(OURS) else OTHER for name in values]
        names, heights = list(values), list(values.values())
        panel(axes, names, heights, colors=colors, label=label, unit=unit)
    figure.savefig(path, dpi=150)


def panel(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    colors: Sequence[str],
    label: str,
    unit: str,
) -> None:
    """Draw one bar per name, the first on top, with its value next to it."""
    drawn = axes.barh(range(len(names)), values, color=colors)
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(values))  # room for the longest bar's value
    axes.set_xlabel(unit)
    axes.set_title(label, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)


def draw_frontier(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    of: tuple[str, str],
    title: str,
    over: tuple[str, float, str] = SIZE,
) -> None:
    """Write a picture of quality against size, or another cost, for every way to shrink a model.

    Args:
        rows: rows of a table; Ortolan's are colored. A line joins those of one tool that are
            better than all its cheaper ones.
        path: the file.
        of: key of the quality in a row, and its label.
        title: title of the picture.
        over: key of the cost, its unit, and its label. Rows without it are left out.
    """
    (key, name), (cost, unit, axis) = of, over
    # fp32 is far from the others
    small = [row for row in rows if row["precision"] != "fp32" and cost in row]
    if not small:
        return
    figure = Figure(figsize=FRONTIER_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.08)
    tools = list(dict.fromkeys(row["tool"] for row in small))
    own = [tool for tool in tools if tool.startswith(OURS)]
    others = [tool for tool in tools if tool not in own]
    labels = []
    for tool in tools:
        points = sorted((row for row in small if row["tool"] == tool), key=itemgetter(cost))
        place = (own if tool in own else others).index(tool)
        colors, markers = (SHADES, ("o",)) if tool in own else (GREYS, MARKERS)
        color = colors[place % len(colors)]
        marker = markers[place % len(markers)]
        lowest = accumulate((row[key] for row in points), min)
        best = [row for row, low in zip(points, lowest, strict=True) if row[key] == low]
        axes.plot([row[cost] / unit for row in best], [row[key] for row in best], color=color)
        at = [(row[cost] / unit, row[key]) for row in points]
        axes.scatter(*zip(*at, strict=True), color=color, marker=marker, label=tool, zorder=2)
        labels += [(row["label"], xy, color) for row, xy in zip(points, at, strict=True)]
    _label(axes, labels)
    for named in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        named(FuncFormatter(_decimal))
    axes.tick_params(axis="y", which="both", labelsize="x-small")
    axes.set_xlabel(axis)
    axes.set_ylabel(name)
    axes.set_title(title, fontsize="small")
    axes.legend(fontsize="x-small")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _decimal(value: float, _: int | None) -> str:
    """A tick of a logarithmic axis, or nothing where the next one would touch it."""
    text = f"{value:.1g}"
    return text if text[-1] in "1235" else ""


def _label(axes: Axes, labels: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    """Write labels next to their points, without overlaps where there is room.

    Args:
        axes: with all points.
        labels: text, point and color.
    """
    axes.figure.canvas.draw()
    at = [axes.transData.transform(xy) for _, xy, _ in labels]
    taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    for text, xy, color in labels:
        label = axes.annotate(
            text, xy, xytext=(5, 3), textcoords="offset points", fontsize="x-small", color=color
        )
        for up, is_right in product(LABEL_OFFSETS, (True, False)):
            label.xyann = (5 if is_right else -5, up)
            label.set_horizontalalignment("left" if is_right else "right")
            label.set_verticalalignment("baseline" if up > 0 else "top")
            box = label.get_window_extent()
            if box.x0 > axes.bbox.x0 and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def draw_lengths(
    rows: Sequence[Mapping[str, Any]], path: Path, *, figures: Mapping[str, str], title: str
) -> None:
    """Write a picture of figures by length, both logarithmic, one line per kind.

    Args:
        rows: rows with `kind`, `length` and the figures, some of which may be None.
        path: the file.
        figures: keys of the figures, which end in their unit, and their names.
        title: title of the picture.
    """
    figure = Figure(figsize=LENGTHS_INCHES, layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panels = figure.subplots(-(-len(figures) // 2), 2, squeeze=False)
    for axes, (key, name) in zip(panels.flat, figures.items(), strict=False):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            measured = [row for row in rows if row["kind"] == kind and row[key] is not None]
            lengths = [row["length"] for row in measured]
            axes.plot(lengths, [row[key] for row in measured], marker="o", markersize=3, label=kind)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"{name}, {key.rpartition('_')[2]}", fontsize="small")
        axes.legend(fontsize="x-small")
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)

"""The speeds of a measurement as a picture. Does not measure."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report import Speed

FIRST, OTHER = "#1f6f8b", "#b8c4ca"  # the peer that the others are compared with stands out
BAR_INCHES = 0.36
FRAME_INCHES = 1.1
WIDTH_INCHES = 4.6


def draw(speeds: Sequence[Speed], path: Path, *, title: str, highlighted: str) -> None:
    """Write a PNG: prefill above decoding, one column for each length of prompt.

    Args:
        speeds: of each peer and length; peers appear in this order, from the top.
        path: the file.
        title: what was measured, and how.
        highlighted: peers whose name begins so are coloured.
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
            panel(axes[row, column], names, values, colors=colors, label=label)
    figure.savefig(path, dpi=150)


def panel(
    axes: Axes, names: Sequence[str], values: Sequence[float], *, colors: Sequence[str], label: str
) -> None:
    """Draw one bar per name, the first on top, its value beside it."""
    drawn = axes.barh(range(len(names)), values, color=colors)
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(values))  # room for the longest bar's value
    axes.set_xlabel("tokens per second")
    axes.set_title(label, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)

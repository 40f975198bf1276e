"""The charts of a stored result, drawn from its JSON alone."""

from collections.abc import Callable
from pathlib import Path

from chart import TIME, draw, draw_bars, draw_frontier, draw_lengths
from report import Document, Speed

COSTS = {
    "train_s": "a training step",
    "prefill_s": "a prompt",
    "token_s": "one token after it",
    "state_bytes": "the state",
}
"""Figures of the cost of a token, and their names."""

QUALITY = ("mean_kl", "mean KL to float32, nats")
"""Quality of `quality.py`, and its label."""


def draw_result(document: Document, path: Path) -> None:
    """Draw what a result measured. Writes more pictures next to `path` if there are more charts.

    Args:
        document: content of a JSON file in `benchmarks/results/`.
        path: the picture; its suffix is the format.

    Raises:
        ValueError: the result is of no known kind.
    """
    for key, drawn in _BY_KEY.items():
        if key in document:
            drawn(document, path)
            return
    raise ValueError(f"{path.stem}: a result has one of the keys {', '.join(_BY_KEY)}.")


def _speeds(document: Document, path: Path) -> None:
    title = f"{document['checkpoint']}, {document['precision']}, {document['threads']} threads"
    first = document["footprints"][0]["peer"]
    speeds = [Speed(**speed) for speed in document["speeds"]]
    draw(speeds, path, title=title, highlighted=first)


def _frontier(document: Document, path: Path) -> None:
    rows = document["settings"]
    title = f"{document['checkpoint']}, {document['text']['source']}"
    draw_frontier(rows, path, of=QUALITY, title=title)
    timed = path.with_name(f"{path.stem}-time{path.suffix}")
    draw_frontier(rows, timed, of=QUALITY, title=title, over=TIME)


def _lengths(document: Document, path: Path) -> None:
    title = f"By tokens of the text; one thread of {document['machine']['processor']}"
    draw_lengths(document["points"], path, figures=COSTS, title=title)


def _streams(document: Document, path: Path) -> None:
    panels = {
        f"{count} at once": {
            row["peer"]: row["step_per_s"] for row in document["rows"] if row["streams"] == count
        }
        for count in document["streams"]
    }
    title = f"{document['checkpoint']}, {document['threads']} threads"
    draw_bars(panels, path, title=title, unit="tokens per second of all texts")


_BY_KEY: dict[str, Callable[[Document, Path], None]] = {
    "speeds": _speeds,
    "settings": _frontier,
    "points": _lengths,
    "streams": _streams,
}
"""Functions that draw a result, by the key that only results of its kind have."""

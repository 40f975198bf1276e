"""JSON, tables and sizes on standard output."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortolan.runtime.bundle.quality import Quality


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2))


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns, one line per row."""
    rows = [(" ".join(name.splitlines()), value) for name, value in rows]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {' '.join(value.splitlines())}".rstrip())


def quality_rows(quality: "Quality | None") -> list[tuple[str, str]]:
    """Table rows: how far the bundle is from the trained model, and what would help."""
    if quality is None:
        return []
    nearer = [("", f"nearer with {' or '.join(quality.advice)}")] if quality.advice else []
    return [("quality", quality.summary), *nearer]


def size(count: float) -> str:
    """Bytes for a person: `1.5 GB`. Units are powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

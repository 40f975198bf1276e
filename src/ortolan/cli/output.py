"""JSON, tables and sizes on standard output."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortolan.runtime.bundle.quality import Quality
    from ortolan.runtime.bundle.witness import Witness


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2))


Row = tuple[str, str | None]  # name and value of a table; a row without a value is not printed


def print_table(rows: Iterable[Row]) -> None:
    """Print names and values in two columns, one line per row."""
    lines = [(_one_line(name), _one_line(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        print(f"{name:<{width}}  {value}".rstrip())


def aligned(rows: Iterable[Sequence[str]], *, has_figures: bool = False) -> list[str]:
    """Lines of a table; with `has_figures`, columns after the first are aligned to the right."""
    rows = list(rows)
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        is_right = has_figures and number > 0
        columns.append([cell.rjust(width) if is_right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def quality_rows(quality: "Quality | None") -> list[Row]:
    """Rows: the distance from the trained model, and what would reduce it."""
    if quality is None:
        return []
    nearer = f"nearer with {' or '.join(quality.advice)}" if quality.advice else None
    return [("quality", quality.summary), ("", nearer)]


def witness_row(witness: "Witness | None") -> Row:
    """Row: what the publisher's own code answered when the bundle was made."""
    return ("witness", None if witness is None else witness.summary)


def size(count: float) -> str:
    """Bytes for a person: `1.5 GB`. Units are powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

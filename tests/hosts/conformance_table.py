"""The table in the guide of the cases that each host computes.

`pytest --snapshot-update tests/hosts/test_conformance.py` writes the columns again.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.hosts.conformance import Case

__all__ = ["check_column"]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "browser.md"

HEAD = "| cases | bundles |"


def check_column(
    name: str, cases: Sequence[Case], notes: Sequence[str | None], *, update: bool
) -> None:
    """Compare a column with notes on cases, such as why a host refuses them; None if equal."""
    text = GUIDE.read_text()
    start = text.index(HEAD)
    table = text[start : text.index("\n\n", start)]
    rows = [row.strip("| ").split(" | ") for row in table.split("\n")]
    place = rows[0].index(name)
    for row, cells in zip(rows[2:], _cells(cases, notes), strict=True):
        row[:2] = cells[:2]
        row[place] = cells[2]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines[1] = table.split("\n")[1]
    if update:
        GUIDE.write_text(text.replace(table, "\n".join(lines)))
    else:
        assert "\n".join(lines) == table, name


def _cells(cases: Sequence[Case], notes: Sequence[str | None]) -> list[list[str]]:
    """Group, bundles and result of each row."""
    rows = []
    for group, pairs in groupby(zip(cases, notes, strict=True), lambda pair: pair[0]["group"]):
        own = [*pairs]
        count = sum(note is None for _, note in own)
        parts = [str(count)] * (count > 0) + sorted({note for _, note in own if note is not None})
        bundles = dict.fromkeys(case["bundle"] for case, _ in own)
        rows.append([group, ", ".join(bundles), "; ".join(parts)])
    return rows

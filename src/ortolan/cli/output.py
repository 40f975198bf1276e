"""What the commands print with: JSON, tables, sizes, progress."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ortolan.cli.lines import ProgressLines

if TYPE_CHECKING:
    from ortolan.runtime.bundle.quality import Quality


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, indent=2))


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values in two columns on stdout, a line each."""
    rows = [(" ".join(name.splitlines()), value) for name, value in rows]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {' '.join(value.splitlines())}".rstrip())


def quality_rows(quality: "Quality | None") -> list[tuple[str, str]]:
    """Rows of a table: how far a bundle is from the trained model, and what would help."""
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


def progress(command: str) -> "ProgressBars | ProgressLines":
    """Progress of a long command on stderr: bars on a terminal, else a line every ten seconds."""
    return ProgressBars() if sys.stderr.isatty() else ProgressLines(command)


class ProgressBars:
    """Progress of several steps on a terminal, one bar each."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` of a step are done."""
        if step != self._step or self._bar is None:
            self.close()
            self._step = step
            self._bar = tqdm(
                total=total,
                desc=f"{step:<9}",
                bar_format="{desc} {bar:30} {percentage:3.0f}% {elapsed}",
            )
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

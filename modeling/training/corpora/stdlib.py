"""Text that is on every machine: the source of Python's standard library.

Knows files and documents. Does not know models.
"""

import fnmatch
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import StdlibData


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents to learn from and documents to measure on."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def held_out_bytes(self) -> int:
        """UTF-8 bytes of the held-out documents."""
        return sum(len(text.encode()) for text in self.held_out)


def read_corpus(data: StdlibData) -> Corpus:
    """Read the documents that a recipe names, sorted by path.

    Raises:
        RecipeError: nothing is left to learn from or to measure on.
    """
    root = Path(sysconfig.get_path("stdlib"))
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(fnmatch.fnmatch(name, pattern) for pattern in data.exclude):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the standard library tests its own decoder with such files
        is_held_out = any(name.startswith(f"{folder}/") for folder in data.held_out)
        (held_out if is_held_out else train).append(text)
    if not train or not held_out:
        raise RecipeError(
            f"data: expected files to learn from and files to measure on below {root}, got "
            f"{len(train)} and {len(held_out)}. Install the source of the standard library."
        )
    return Corpus(train=tuple(train), held_out=tuple(held_out))

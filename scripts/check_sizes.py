"""Keep functions short, and name the files that may be due for a split.

Counts lines, docstrings and comments included, since a reader reads them too.

    python scripts/check_sizes.py [ROOT]

Prints one line per long file, which is a warning, and one per long function, which fails the check:
a long file is better split by noun or left alone than compressed.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# `src` holds links to the first three; pathlib does not follow them, so each file counts once.
FOLDERS = ("modeling", "export", "runtime", "src", "models", "tests", "benchmarks", "scripts")


def python_files(root: Path) -> Iterator[Path]:
    """Yield the Python files of the project below `root`, in a stable order."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def long_files(path: Path) -> Iterator[str]:
    """Yield a warning if the file `path` is long."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        yield f"warning: {path} has {lines} lines (over {MAX_FILE_LINES}). Does it hold two nouns?"


def long_functions(path: Path) -> Iterator[str]:
    """Yield an error for each function of the file `path` that is too long."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield (
                f"{path}:{node.lineno}: {node.name} has {length} lines (at most "
                f"{MAX_FUNCTION_LINES}). Split it into steps."
            )


def main() -> int:
    """Check every file; return 1 if a function is too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    root = parser.parse_args().root
    warnings = [line for path in python_files(root) for line in long_files(path)]
    errors = [line for path in python_files(root) for line in long_functions(path)]
    for line in warnings + errors:
        print(line)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

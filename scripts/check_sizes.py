"""Keep files and functions small.

Counts lines, whatever stands on them: a long docstring is also something to read. Does not
judge complexity.

    python scripts/check_sizes.py [ROOT]

Prints one line per problem; exit status 1 if there is any.
"""

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


def problems(path: Path) -> Iterator[str]:
    """Yield one line of text for each size that `path` exceeds."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}: expected at most {MAX_FILE_LINES} lines, got {lines}. Split it by noun."
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield (
                f"{path}:{node.lineno}: {node.name}: expected at most {MAX_FUNCTION_LINES} lines, "
                f"got {length}. Split it into steps."
            )


def main() -> int:
    """Check every file and print what is too long."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = [line for path in python_files(root) for line in problems(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

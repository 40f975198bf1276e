"""Keep rooms within their budgets and functions short, and name files that may be due for a split.

    python scripts/check_sizes.py [--root FOLDER] [--table]

A budget (`[tool.ortolan.lines]` in pyproject.toml) counts lines of code: without blank lines,
comments and docstrings, so that nothing is gained by leaving those out. Files and functions are
measured with all of their lines, since a reader reads them too.

Fails on a room over its budget or without one, and on a long function. A long file is a warning:
it is better split by noun or left alone than compressed.
"""

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# `src` holds links to the first three; pathlib does not follow them, so each file counts once.
FOLDERS = (
    *("modeling", "export", "runtime", "src", "models", "tests", "benchmarks", "scripts"),
    "examples",
)

DIVIDED = ("modeling", "export", "runtime", "src/ortolan", "tests")
"""Folders whose sub-folders are rooms of their own; the files beside those are one more."""

HOSTS = {"hosts/c": "hosts/c/*.[ch]", "hosts/js": "hosts/js/src/*.js"}
"""Rooms in other languages: only their lines are counted."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def python_files(root: Path) -> Iterator[Path]:
    """Yield the Python files of the project below `root`, in a stable order."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a file, whose path is relative to the root."""
    for folder in DIVIDED:
        if path.is_relative_to(folder):
            inner = path.relative_to(folder).parts
            return folder if len(inner) == 1 else f"{folder}/{inner[0]}"
    return path.parts[0]


def code_lines(text: str) -> int:
    """Number of lines with code: neither blank nor only a comment or a docstring."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        for statement in node.body if isinstance(node, _DOCUMENTED) else ():
            if _is_text(statement):  # strings below constants, too
                end = statement.end_lineno or statement.lineno
                lines.difference_update(range(statement.lineno, end + 1))
    return len(lines)


def host_lines(text: str) -> int:
    """Number of lines with code in C or JavaScript: neither blank nor only a comment."""
    count, inside = 0, False
    for line in map(str.strip, text.splitlines()):
        inside = inside or line.startswith("/*")
        count += bool(line) and not inside and not line.startswith("//")
        inside = inside and not line.endswith("*/")
    return count


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def over_budget(sizes: Mapping[str, int], budgets: Mapping[str, int]) -> Iterator[str]:
    """Yield an error for each room over its budget, without one, or that is gone."""
    for room in sorted(sizes.keys() | budgets.keys()):
        if room not in sizes or room not in budgets:
            problem = "no such room" if room not in sizes else "a room without a budget"
            yield f"{room}: {problem}. Mend [tool.ortolan.lines] in pyproject.toml."
        elif sizes[room] > budgets[room]:
            yield (
                f"{room} has {sizes[room]} lines of code (at most {budgets[room]}). Find what "
                "became unnecessary, or raise the row and say why in its comment."
            )


def long_files(path: Path, text: str) -> Iterator[str]:
    """Yield a warning if a file is long."""
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"warning: {path} has {lines} lines (over {MAX_FILE_LINES}). Does it hold two nouns?"


def long_functions(path: Path, text: str) -> Iterator[str]:
    """Yield an error for each function of a file that is too long."""
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield (
                f"{path}:{node.lineno}: {node.name} has {length} lines (at most "
                f"{MAX_FUNCTION_LINES}). Split it into steps."
            )


def main() -> int:
    """Check every file and room; return 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--table", action="store_true", help="print the lines of every room")
    options = parser.parse_args()
    texts = {path: path.read_text(encoding="utf-8") for path in python_files(options.root)}
    code, everything = Counter[str](), Counter[str]()
    for path, text in texts.items():
        room = room_of(path.relative_to(options.root))
        code[room] += code_lines(text)
        everything[room] += len(text.splitlines())
    for room, pattern in HOSTS.items():
        hosted = [path.read_text(encoding="utf-8") for path in options.root.glob(pattern)]
        code[room] = sum(map(host_lines, hosted))
        everything[room] = sum(len(text.splitlines()) for text in hosted)
    project = tomllib.loads((options.root / "pyproject.toml").read_text(encoding="utf-8"))
    budgets = project["tool"]["ortolan"]["lines"]
    errors = list(over_budget(code, budgets))
    for path, text in texts.items():
        for warning in long_files(path, text):
            print(warning)
        errors += long_functions(path, text)
    if options.table:
        print_table(code, everything, budgets)
    for error in errors:
        print(error)
    return 1 if errors else 0


def print_table(
    code: Mapping[str, int], everything: Mapping[str, int], budgets: Mapping[str, int]
) -> None:
    """Print the lines of each room: code, its budget, and all."""
    print(f"{'room':<28}{'code':>8}{'budget':>8}{'all':>8}")
    for room in sorted(code):
        print(f"{room:<28}{code[room]:>8}{budgets.get(room, 0):>8}{everything[room]:>8}")
    total, lines = sum(code.values()), sum(everything.values())
    print(f"{'together':<28}{total:>8}{sum(budgets.values()):>8}{lines:>8}")


if __name__ == "__main__":
    sys.exit(main())

"""Check that a wheel holds the code of the checkout: all of it, nothing else, and no links.

The rooms are reached through symbolic links while building (see docs/adr/0001-layout.md). A
build back end that does not follow them makes a wheel without code and reports success.
Does not build the wheel.

    python scripts/check_wheel.py dist/ortolan-0.1.0-py3-none-any.whl [ROOT]

Prints one line per problem; exit status 1 if there is any.
"""

import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("modeling", "export", "runtime")


def expected_files(root: Path) -> set[str]:
    """Return the names that a wheel built from `root` must hold, without its metadata."""
    package = root / "src" / "ortolan"
    files = {
        "ortolan/py.typed",
        "ortolan/export/coverage.json",
        "ortolan/runtime/graph/vocabulary.json",
    }
    files |= {f"ortolan/{path.relative_to(package)}" for path in package.rglob("*.py")}
    for room in ROOMS:
        files |= {f"ortolan/{path.relative_to(root)}" for path in (root / room).rglob("*.py")}
    return files


def problems(wheel: Path, root: Path) -> Iterator[str]:
    """Yield one line of text for each file that is missing, surplus or a link."""
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    # Metadata stands in a folder of its own, ortolan-<version>.dist-info.
    packed = {entry.filename for entry in entries if ".dist-info/" not in entry.filename}
    expected = expected_files(root)
    for name in sorted(expected - packed):
        yield f"{wheel.name}: {name}: expected in the wheel, got nothing. Are the links in src/?"
    for name in sorted(packed - expected):
        yield f"{wheel.name}: {name}: not a file of the package. Build from a clean checkout."
    for entry in entries:
        if stat.S_ISLNK(entry.external_attr >> 16):
            yield f"{wheel.name}: {entry.filename}: expected a plain file, got a link."


def main() -> int:
    """Check the wheel that the command line names."""
    if len(sys.argv) not in (2, 3):
        print("usage: check_wheel.py WHEEL [ROOT]", file=sys.stderr)
        return 2
    root = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parents[1]
    found = list(problems(Path(sys.argv[1]), root))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

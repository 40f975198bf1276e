"""Check that a wheel contains exactly the package's code, and no links.

Builds reach the code through symbolic links (docs/adr/0001-layout.md). A build back end that does
not follow them produces a wheel without code and reports success.

    python scripts/check_wheel.py dist/ortolan-0.1.0-py3-none-any.whl [ROOT]

A wheel of `ortolan-runtime` must contain neither modeling nor export.
Prints one line per problem; exit status 1 if there is any.
"""

import argparse
import stat
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOMS = ("modeling", "export", "runtime")


def expected_files(root: Path, rooms: Iterable[str] = ROOMS) -> set[str]:
    """Return the names that a wheel built from `root` must contain, without metadata."""
    package = root / "src" / "ortolan"
    files = {"ortolan/py.typed"}
    data = ("export/coverage.json", "runtime/graph/vocabulary.json")
    files |= {f"ortolan/{name}" for name in data if name.split("/")[0] in rooms}
    files.add("ortolan/freezing/rthooks.dat")
    files |= {f"ortolan/{path.relative_to(package)}" for path in package.rglob("*.py")}
    page = package / "server" / "page" / "files"
    files |= {f"ortolan/{path.relative_to(package)}" for path in page.rglob("*.*")}
    for room in rooms:
        files |= {f"ortolan/{path.relative_to(root)}" for path in (root / room).rglob("*.py")}
    return files


def problems(wheel: Path, root: Path) -> Iterator[str]:
    """Yield a line for each missing file, extra file and link."""
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    packed = {entry.filename for entry in entries if ".dist-info/" not in entry.filename}
    is_runtime = wheel.name.startswith("ortolan_runtime-")
    expected = expected_files(root, ("runtime",) if is_runtime else ROOMS)
    for name in sorted(expected - packed):
        yield f"{wheel.name}: {name}: expected in the wheel, got nothing. Are the links in src/?"
    for name in sorted(packed - expected):
        yield f"{wheel.name}: {name}: not a file of the package. Build from a clean checkout."
    for entry in entries:
        if stat.S_ISLNK(entry.external_attr >> 16):
            yield f"{wheel.name}: {entry.filename}: expected a plain file, got a link."


def main() -> int:
    """Check the wheel given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    args = parser.parse_args()
    lines = list(problems(args.wheel, args.root))
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

"""Snippets of the standard library's source, labeled with their packages."""

import fnmatch
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ortolan.modeling.errors import RecipeError

PACKAGES = (
    "asyncio",
    "ctypes",
    "email",
    "html",
    "http",
    "idlelib",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "re",
    "sqlite3",
    "tkinter",
    "turtledemo",
    "unittest",
    "urllib",
    "wsgiref",
    "xml",
    "xmlrpc",
    "zoneinfo",
)
"""The labels. Each has several files, and no version of Python since 3.9 has dropped one."""

TESTS = {
    "html": ("test_htmlparser.py",),
    "http": ("test_httplib.py", "test_httpservers.py", "test_http_*.py"),
    "multiprocessing": ("test_multiprocessing_*.py", "_test_multiprocessing.py"),
    "urllib": ("test_urllib*.py",),
    "xml": (
        "test_xml_*.py",
        "test_minidom.py",
        "test_sax.py",
        "test_pulldom.py",
        "test_pyexpat.py",
    ),
    "xmlrpc": ("test_xmlrpc_*.py",),
}
"""Tests in `test/` that belong to a package but are not named after it."""

LINES = 10
"""Lines per snippet, blank ones not counted."""

STRIDE = 5
"""Lines between the starts of training snippets; held-out snippets do not overlap."""

HELD_OUT = 0.25
"""Largest share of a package's lines to hold out."""

MOST_HELD_OUT = 75
"""Limit of held-out snippets per package, so that large packages do not dominate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Adjacent lines of a file, and the index of its package in `PACKAGES`."""

    text: str
    label: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippets:
    """Labeled snippets, and whole files of any package or none, without blank lines."""

    train: tuple[Snippet, ...]
    held_out: tuple[Snippet, ...]
    texts: tuple[str, ...]
    held_out_texts: tuple[str, ...]


def read_snippets(*, exclude: tuple[str, ...] = (), seed: int = 0) -> Snippets:
    """Read and split the standard library of the running Python.

    No file is on both sides of the split.
    """
    files = dict(_files(exclude))
    by_package: defaultdict[str, list[str]] = defaultdict(list)
    for name in files:
        package = package_of(name)
        if package is not None:
            by_package[package].append(name)
    train: list[Snippet] = []
    held_out: list[Snippet] = []
    held_out_names: set[str] = set()
    for label, package in enumerate(PACKAGES):
        sizes = {name: len(files[name]) for name in by_package[package]}
        chosen = _held_out_files(package, sizes, seed=seed)
        held_out_names |= chosen
        of_train, of_held_out = (
            [
                Snippet(text=text, label=label, file=name)
                for name in sorted(sizes)
                if (name in chosen) is is_held_out
                for text in cut(files[name], package, stride=stride)
            ]
            for is_held_out, stride in ((False, STRIDE), (True, LINES))
        )
        train += of_train
        held_out += _thinned(of_held_out, MOST_HELD_OUT)
    texts = {name: "\n".join(lines) + "\n" for name, lines in files.items()}
    return Snippets(
        train=tuple(train),
        held_out=tuple(held_out),
        texts=tuple(text for name, text in texts.items() if name not in held_out_names),
        held_out_texts=tuple(text for name, text in texts.items() if name in held_out_names),
    )


def package_of(name: str) -> str | None:
    """Package that a file of the standard library belongs to or tests."""
    first, _, rest = name.partition("/")
    if first != "test":
        return first if first in PACKAGES and rest else None
    head = rest.partition("/")[0]
    for package in PACKAGES:
        patterns = (f"test_{package}", f"test_{package}.py", *TESTS.get(package, ()))
        if any(fnmatch.fnmatchcase(head, pattern) for pattern in patterns):
            return package
    return None


def cut(lines: list[str], package: str, *, stride: int) -> list[str]:
    """Snippets of `LINES` lines, without lines that import from the package itself."""
    own = re.compile(rf"\s*(from\s+\.|(from|import)\s.*(?<![a-z]){package}(?![a-z]))")
    others = [line for line in lines if not own.match(line)]
    starts = range(0, len(others) - LINES + 1, stride)
    return ["\n".join(others[start : start + LINES]) + "\n" for start in starts]


def names_package(snippet: Snippet) -> bool:
    """Whether a snippet contains the name of its package, as a word or as part of a name."""
    name = PACKAGES[snippet.label]
    spellings = "|".join((name, name.upper(), name.capitalize()))
    # JSONDecodeError names json; RESULT does not name re.
    pattern = rf"(?<![A-Za-z])({spellings})(?![a-z]|[A-Z]{{2}})"
    return re.search(pattern, snippet.text) is not None


def _files(exclude: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Names and lines of the files, sorted; without blank lines."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the standard library tests decoding with such files
        yield name, [line.rstrip() for line in text.splitlines() if line.strip()]


def _held_out_files(package: str, sizes: dict[str, int], *, seed: int) -> set[str]:
    """Files in random order, held out as long as enough training lines are left."""
    if len(sizes) < 2:
        raise RecipeError(
            f"data: {package} needs at least two files (got {len(sizes)}). Install the source of "
            "the standard library, with its tests."
        )
    room = HELD_OUT * sum(sizes.values())
    chosen: set[str] = set()
    for name in sorted(sizes, key=lambda name: sha256(f"{seed} {name}".encode()).digest()):
        if sizes[name] <= room:
            chosen.add(name)
            room -= sizes[name]
    return chosen or {min(sizes, key=lambda name: (sizes[name], name))}


def _thinned(snippets: list[Snippet], most: int) -> list[Snippet]:
    """At most `most` snippets, evenly spaced."""
    if len(snippets) <= most:
        return snippets
    return [snippets[i * len(snippets) // most] for i in range(most)]

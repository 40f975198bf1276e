"""Snippets of the standard library's source, and the package that each comes from."""

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
"""The labels. Each has several files, and no version of Python has dropped one since 3.9."""

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
"""Tests of a package in `test/`, besides those that are named after it."""

LINES = 10
"""Lines of a snippet, blank ones not counted."""

STRIDE = 5
"""Lines between the starts of two snippets to learn from; those to measure on do not overlap."""

HELD_OUT = 0.25
"""The largest part of a package's lines that is held out."""

MOST_HELD_OUT = 75
"""Snippets of one package to measure on, so that large packages do not decide the figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Some lines of a file.

    Attributes:
        label: index into `PACKAGES`.
        file: below the folder of the standard library.
    """

    text: str
    label: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippets:
    """Snippets to learn from and to measure on, and whole files to learn from without labels.

    Attributes:
        texts: every file, of any package or of none, that is not held out; no blank lines.
        held_out_texts: the files that `held_out` is from.
    """

    train: tuple[Snippet, ...]
    held_out: tuple[Snippet, ...]
    texts: tuple[str, ...]
    held_out_texts: tuple[str, ...]


def read_snippets(*, exclude: tuple[str, ...] = (), seed: int = 0) -> Snippets:
    """Read and split the files of the running Python's standard library.

    No file is on both sides of the split.

    Args:
        exclude: glob patterns of files that are left out.
        seed: of the split.

    Raises:
        RecipeError: a package has less than two files.
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
    """The package that a file of the standard library belongs to, or is a test of."""
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
    """Snippets of `LINES` lines each, without the lines that import from the package itself."""
    own = re.compile(rf"\s*(from\s+\.|(from|import)\s.*(?<![a-z]){package}(?![a-z]))")
    kept = [line for line in lines if not own.match(line)]
    starts = range(0, len(kept) - LINES + 1, stride)
    return ["\n".join(kept[start : start + LINES]) + "\n" for start in starts]


def names_package(snippet: Snippet) -> bool:
    """Whether a snippet has the name of its package somewhere, as a word or a part of a name."""
    name = PACKAGES[snippet.label]
    spellings = "|".join((name, name.upper(), name.capitalize()))
    # JSONDecodeError names json; RESULT does not name re.
    pattern = rf"(?<![A-Za-z])({spellings})(?![a-z]|[A-Z]{{2}})"
    return re.search(pattern, snippet.text) is not None


def _files(exclude: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Names and lines of the files that are not left out, sorted; blank lines are dropped."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the standard library tests its own decoder with such files
        yield name, [line.rstrip() for line in text.splitlines() if line.strip()]


def _held_out_files(package: str, sizes: dict[str, int], *, seed: int) -> set[str]:
    """Files in a random order, each taken if it leaves enough to learn from."""
    if len(sizes) < 2:
        raise RecipeError(
            f"data: expected files of {package} to learn from and to measure on, got "
            f"{len(sizes)}. Install the source of the standard library, with its tests."
        )
    room = HELD_OUT * sum(sizes.values())
    chosen: set[str] = set()
    for name in sorted(sizes, key=lambda name: sha256(f"{seed} {name}".encode()).digest()):
        if sizes[name] <= room:
            chosen.add(name)
            room -= sizes[name]
    return chosen or {min(sizes, key=lambda name: (sizes[name], name))}


def _thinned(snippets: list[Snippet], most: int) -> list[Snippet]:
    """At most so many of them, evenly spread."""
    if len(snippets) <= most:
        return snippets
    return [snippets[i * len(snippets) // most] for i in range(most)]

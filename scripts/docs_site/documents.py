"""The Markdown documents of the repository as pages, with indexes for their folders.

Documents are written for a forge: they link to folders and to source files, which Sphinx does not
hold. On the site, a folder stands for its index page, and a source file gets a page that shows it.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/results/*.md",
    "examples/**/README.md",
    "hosts/*/README.md",
    "models/*/README.md",
)
"""Documents that become pages."""

TITLES = {
    "docs/guides": "Guides",
    "docs/tutorials": "Tutorials",
    "docs/migrating": "Migrating",
    "docs/adr": "Decisions",
    "benchmarks/results": "Benchmarks",
    "models": "Models",
}
"""Titles of the index pages of folders; other folders have their names."""

STANDS_FOR = {
    "benchmarks": "benchmarks/results/index.md",
    "export": "reference/python/ortolan.export.rst",
    "modeling": "reference/python/ortolan.modeling.rst",
    "runtime": "reference/python/ortolan.runtime.rst",
    "src/ortolan": "reference/python/index.rst",
    "src/ortolan/server": "reference/python/ortolan.server.rst",
}
"""Pages that stand for folders without documents."""

WITHOUT_INDEX = (".", "docs", "hosts")
"""Folders whose pages are in the menu of other sections."""

TITLES_ONLY = ("benchmarks/results", "docs/adr")
"""Folders whose documents start with a context, which says little about them in an index."""

GROUPS = {"benchmarks/results": {"adr-*": "Figures behind the decisions"}}
"""Headings in the index of a folder, by pattern of names; pages of no group come first."""

LANGUAGES = {".json": "json", ".py": "python", ".rs": "rust", ".toml": "toml"}
"""Languages of source files that get a page; other files are downloads."""

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
_SENTENCE = re.compile(r"(?!```)[\w`\[].*?\.(?=\s|$)", re.DOTALL)


def stage(root: Path, out: Path) -> None:
    """Copy every document, with what it links to and indexes of the folders, below `out`."""
    documents = sorted({path for pattern in PATTERNS for path in root.glob(pattern)})
    pages = {path.relative_to(root).as_posix(): page(path.relative_to(root)) for path in documents}
    folders = _folders(pages)
    pages |= {
        str(PurePosixPath(place).parent): place for place in pages.values() if _is_index(place)
    }
    pages |= {folder: f"{folder}/index.md" for folder in folders} | STANDS_FOR
    for document in documents:
        source = document.relative_to(root).as_posix()
        text = relinked(document.read_text(encoding="utf-8"), source, pages, root=root, out=out)
        _write(out / pages[source], text)
    order = _linked(root / "docs" / "README.md", root)
    for folder, entries in folders.items():
        _write_index(out, folder, entries, order=order)


def page(document: Path | PurePosixPath) -> str:
    """Path of the page of a document: a README is the index of its folder."""
    named = document.with_name("index.md") if document.name == "README.md" else document
    return named.as_posix()


def relinked(text: str, source: str, pages: Mapping[str, str], *, root: Path, out: Path) -> str:
    """Point the links of a document at pages, and copy the files that it links to.

    Args:
        text: of the document.
        source: its path in the repository.
        pages: pages by the paths of their documents and folders.
        root: the repository.
        out: folder of the pages.

    Raises:
        LookupError: a link leads to a file that does not exist.
    """
    here = str(PurePosixPath(pages[source]).parent)

    def link(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups(default="")
        path = normpath(str(PurePosixPath(source).parent / target))
        if not (root / path).exists():
            raise LookupError(f"{source}: {target} does not exist. Correct the link.")
        place = pages.get(path) or _copied(path, root=root, out=out)
        if place is None:
            return label  # a folder without a page
        return f"{mark}[{label}]({relpath(place, here)}{anchor})"

    parts = _FENCED.split(text)
    return "".join(part if n % 2 else _LINK.sub(link, part) for n, part in enumerate(parts))


def summary(text: str) -> tuple[str, str]:
    """Title and first sentence of a document; the sentence is empty if it starts otherwise."""
    head, _, body = text.partition("\n")
    blocks = [block for block in body.strip().split("\n\n") if not block.startswith("#")]
    sentence = _SENTENCE.match(blocks[0]) if blocks else None
    first = "" if sentence is None else " ".join(sentence[0].split())
    return head.removeprefix("# "), _LINK.sub(r"\2", first)


def _folders(pages: Mapping[str, str]) -> dict[str, list[str]]:
    """Pages of each folder that needs an index, by folder."""
    folders: dict[str, list[str]] = {}
    for place in pages.values():
        page = PurePosixPath(place)
        folder = page.parent.parent if _is_index(place) else page.parent
        if str(folder) not in WITHOUT_INDEX:
            folders.setdefault(str(folder), []).append(place)
    return folders


def _is_index(place: str) -> bool:
    return PurePosixPath(place).name == "index.md"


def _copied(path: str, *, root: Path, out: Path) -> str | None:
    """Copy a file of the repository; return its page or, for a download, its place."""
    source = root / path
    if not source.is_file():
        return None
    language = LANGUAGES.get(source.suffix)
    if language is None:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, out / path)
        return path
    text = source.read_text(encoding="utf-8")
    shown = f"---\norphan: true\n---\n\n# {source.name}\n\n`{path}`\n\n"
    _write(out / f"{path}.md", f"{shown}````{language}\n{text}````\n")
    return f"{path}.md"


def _linked(document: Path, root: Path) -> list[str]:
    """Paths in the repository that a document links to, in order."""
    folder = document.parent.relative_to(root).as_posix()
    targets = _LINK.findall(document.read_text(encoding="utf-8"))
    return [normpath(f"{folder}/{target}") for _, _, target, _ in targets]


def _write_index(out: Path, folder: str, entries: Iterable[str], *, order: Sequence[str]) -> None:
    """Write the index of a folder, or add its pages to the one that it has.

    Pages in `order` come first, as they come there; the others follow by name.
    """
    inside = sorted(
        (relpath(entry, folder) for entry in entries),
        key=lambda name: (_heading(folder, name), _position(order, f"{folder}/{name}"), name),
    )
    index = out / folder / "index.md"
    if index.exists():
        text = index.read_text(encoding="utf-8")
    else:
        text = f"# {TITLES.get(folder, PurePosixPath(folder).name.capitalize())}\n\n"
        groups: dict[str, list[str]] = {}
        for name in inside:
            groups.setdefault(_heading(folder, name), []).append(name)
        for heading, names in groups.items():
            text += heading + "\n".join(_entries(out, folder, names)) + "\n\n"
    _write(index, text + toctree(inside))


def _position(order: Sequence[str], place: str) -> int:
    document = place.removesuffix("/index.md")
    return order.index(document) if document in order else len(order)


def _heading(folder: str, name: str) -> str:
    headings = GROUPS.get(folder, {}).items()
    return next((f"## {title}\n\n" for pattern, title in headings if fnmatch(name, pattern)), "")


def _entries(out: Path, folder: str, names: Iterable[str]) -> Iterator[str]:
    """A line of Markdown for each page."""
    for name in names:
        title, sentence = summary((out / folder / name).read_text(encoding="utf-8"))
        shown = f": {sentence}" if sentence and folder not in TITLES_ONLY else ""
        yield f"* [{title}]({name}){shown}"


def toctree(names: Iterable[str]) -> str:
    """A hidden toctree of Markdown, which puts pages into the navigation."""
    return "\n```{toctree}\n:hidden:\n\n" + "".join(f"{name}\n" for name in names) + "```\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

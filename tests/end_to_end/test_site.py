"""The documentation site: complete, without broken links, and readable without a network."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from sphinx.util.inventory import InventoryFile

from docs_site.api import PACKAGES, public_names
from ortolan.cli import COMMANDS, cli
from ortolan.cli.help import option_sections

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
START = Path("index.html")
NOT_LINKED = {Path("genindex.html"), Path("py-modindex.html"), Path("search.html")}
"""Pages that Sphinx writes and the menu leaves out."""


@dataclass
class Page(HTMLParser):
    """Targets of links, links, what a browser loads to show the page, its pictures and its text."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            (self.loaded if tag == "link" else self.links).append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])
        if tag == "img":
            self.pictures.append(values["src"])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "docs"
    command = [sys.executable, "scripts/build_docs.py", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page by its path."""
    read = {}
    for path in site.rglob("*.html"):
        if "_static" in path.parts:
            continue  # a template of the theme
        page = read[path.relative_to(site)] = Page()
        page.feed(path.read_text(encoding="utf-8"))
        page.text = " ".join(page.text.split())
    return read


def targets(site: Path, path: Path, page: Page) -> Iterator[tuple[Path, str]]:
    """Files of the site that a page links to or loads, and the anchors in them."""
    for address in (*page.links, *page.loaded):
        parts = urlsplit(address)
        if not parts.scheme:
            file = site / path.parent / unquote(parts.path) if parts.path else site / path
            yield file.resolve().relative_to(site.resolve()), unquote(parts.fragment)


def test_every_public_name_is_documented(site: Path, pages: dict[Path, Page]) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {
        name: item.uri
        for kind, items in inventory.data.items()
        if kind.startswith("py:")
        for name, item in items.items()
    }
    for package in PACKAGES:
        for name in (package, *public_names(package)):
            page, _, anchor = documented[name].partition("#")
            assert anchor in pages[Path(page)].anchors, name


def test_every_command_has_a_page_with_its_options(pages: dict[Path, Page]) -> None:
    top = click.Context(cli, info_name="ortolan", **cli.context_settings)
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        text = pages[Path(f"reference/commands/{name}.html")].text
        assert f"ortolan {name}" in text
        context = click.Context(command, info_name=name, parent=top)
        for option, meaning in chain(*option_sections(command, context).values()):
            missing = {option, *re.findall(r"[\w-]+", meaning)} - {""}
            assert [word for word in missing if word not in text] == [], option


def test_every_link_leads_to_a_file_and_an_anchor(site: Path, pages: dict[Path, Page]) -> None:
    broken = [
        f"{path}: {target}#{anchor}"
        for path, page in pages.items()
        for target, anchor in targets(site, path, page)
        if not (site / target).is_file()
        or (anchor and target in pages and anchor not in pages[target].anchors)
    ]
    assert broken == []


def test_every_page_can_be_reached_from_the_start(site: Path, pages: dict[Path, Page]) -> None:
    reached, todo = {START}, [START]
    while todo:
        path = todo.pop()
        for target, _ in targets(site, path, pages[path]):
            if target in pages and target not in reached:
                reached.add(target)
                todo.append(target)
    assert pages.keys() - reached <= NOT_LINKED


def test_every_document_has_a_page(pages: dict[Path, Page]) -> None:
    for document in [*REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*.md")]:
        path = document.relative_to(REPOSITORY).with_suffix(".html")
        path = path.with_name("index.html") if path.stem == "README" else path
        title = document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert re.sub(r"\W", "", title) in re.sub(r"\W", "", pages[path].text)


def test_showing_a_page_loads_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = [address for page in pages.values() for address in page.loaded]
    for style in site.rglob("*.css"):
        loaded += re.findall(r"(?:url\(|@import)\s*['\"]?([^)'\"]+)", style.read_text())
    assert loaded
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []


def test_search_knows_every_page(site: Path, pages: dict[Path, Page]) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    content = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    assert {Path(f"{name}.html") for name in content["docnames"]} == pages.keys() - NOT_LINKED
    assert content["terms"]["calibr"]


def test_every_stored_benchmark_has_a_chart(pages: dict[Path, Page]) -> None:
    for result in (REPOSITORY / "benchmarks" / "results").glob("*.json"):
        pictures = pages[Path(f"benchmarks/results/{result.stem}.html")].pictures
        assert any(Path(picture).name == f"{result.stem}.svg" for picture in pictures), result

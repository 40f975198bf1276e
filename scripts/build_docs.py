"""Build the documentation site, without a network.

    python scripts/build_docs.py [build/docs]

The pages are the Markdown documents of the repository, the commands, the Python API and the charts
of stored benchmarks. Sphinx turns them into HTML. The site replaces an earlier one in the folder,
unless a warning fails the build. Needs the extra `docs`.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from posixpath import relpath

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from sphinx.cmd.build import build_main  # noqa: E402 - the path comes first

from docs_site.api import write_api  # noqa: E402
from docs_site.charts import add_charts  # noqa: E402
from docs_site.commands import write_commands  # noqa: E402
from docs_site.documents import stage, summary, toctree  # noqa: E402

SECTIONS = {
    "reference": [
        "reference/commands/index.md",
        "reference/python/index.rst",
        "docs/families.md",
        "docs/bundle-format.md",
    ],
    "project": [
        "docs/architecture.md",
        "docs/adr/index.md",
        "models/index.md",
        "hosts/c/index.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ],
}
"""Pages of the sections that are not folders of documents; `project` gets those of no section."""

MENU = (
    "docs/tutorials",
    "docs/guides",
    "docs/migrating",
    "examples",
    "reference",
    "benchmarks/results",
    "project",
)
"""Folders of the sections, in order. One that does not exist is left out."""

INVENTORY = "objects.inv"
"""A file that every site has."""

STRICT = ("--fail-on-warning", "--quiet", "--fresh-env")


def write_pages(out: Path) -> None:
    """Write every page into the empty folder `out`."""
    stage(ROOT, out)
    results = Path("benchmarks", "results")
    add_charts(ROOT / results, out / results)
    write_commands(out / "reference" / "commands")
    write_api(out / "reference" / "python")
    start = out / "index.md"
    placed = {*chain(*SECTIONS.values()), *(f"{folder}/index.md" for folder in MENU), start.name}
    patterns = ("*.md", "docs/*.md", "docs/*/index.md")
    found = [path for pattern in patterns for path in out.glob(pattern)]
    others = {path.relative_to(out).as_posix() for path in found} - placed
    for folder, pages in (SECTIONS | {"project": [*SECTIONS["project"], *sorted(others)]}).items():
        write_section(out, folder, pages)
    menu = [f"{folder}/index.md" for folder in MENU if (out / folder).exists()]
    start.write_text(start.read_text(encoding="utf-8") + toctree(menu), encoding="utf-8")


def write_section(out: Path, folder: str, pages: Sequence[str]) -> None:
    """Write the index of a section, which lists pages of other folders."""
    links = [relpath(page, folder) for page in pages]
    lines = [
        f"* [{summary((out / page).read_text(encoding='utf-8'))[0]}]({link})"
        for page, link in zip(pages, links, strict=True)
    ]
    (out / folder).mkdir(exist_ok=True)
    text = f"# {folder.capitalize()}\n\n" + "\n".join(lines) + "\n" + toctree(links)
    (out / folder / "index.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Build into the folder given on the command line, by default build/docs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build" / "docs")
    out: Path = parser.parse_args().out
    if out.exists() and any(out.iterdir()) and not (out / INVENTORY).exists():
        message = f"build_docs.py: {out} is not empty and holds no site. Choose another folder."
        print(message, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        pages, site = Path(folder, "pages"), Path(folder, "site")
        write_pages(pages)
        settings = Path(__file__).parent / "docs_site"
        status = build_main([*STRICT, "-c", str(settings), str(pages), str(site)])
        if status == 0:
            shutil.rmtree(out, ignore_errors=True)
            shutil.move(site, out)
    return status


if __name__ == "__main__":
    sys.exit(main())

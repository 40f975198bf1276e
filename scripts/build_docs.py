"""Build the documentation site, without a network.

    python scripts/build_docs.py [build/docs]

Writes the pages to build/docs-pages: the Markdown documents of the repository, the commands, the
Python API and the charts of stored benchmarks. Sphinx turns them into HTML; a warning fails the
build. Needs the extra `docs`, and PyTorch for the API of `ortolan.modeling`.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from sphinx.cmd.build import build_main  # noqa: E402 - the path comes first

from docs_site.api import write_api  # noqa: E402
from docs_site.charts import add_charts  # noqa: E402
from docs_site.commands import write_commands  # noqa: E402
from docs_site.documents import stage, toctree  # noqa: E402

PAGES = ROOT / "build" / "docs-pages"

SECTIONS = {
    "reference": (
        "Reference",
        {
            "commands/index.md": "Commands",
            "python/index.rst": "Python API",
            "../docs/families.md": "Model types",
            "../docs/bundle-format.md": "Bundle format",
        },
    ),
    "project": (
        "Project",
        {
            "../docs/architecture.md": "Architecture",
            "../docs/adr/index.md": "Decisions",
            "../models/index.md": "Models",
            "../hosts/c/index.md": "Ortolan in C",
            "../CONTRIBUTING.md": "Contributing",
            "../SECURITY.md": "Security",
            "../CHANGELOG.md": "Changelog",
        },
    ),
}
"""Titles of the sections that are no folders, and their pages."""

TOP = (
    "docs/tutorials",
    "docs/guides",
    "docs/migrating",
    "examples",
    "reference",
    "benchmarks/results",
    "project",
)
"""Folders of the sections, in the order of the menu. One that does not exist is left out."""


def write_pages(out: Path) -> None:
    """Write every page into the new folder `out`."""
    stage(ROOT, out)
    results = Path("benchmarks", "results")
    add_charts(ROOT / results, out / results)
    write_commands(out / "reference" / "commands")
    write_api(out / "reference" / "python")
    for folder, (title, pages) in SECTIONS.items():
        lines = [f"* [{name}]({page})" for page, name in pages.items()]
        text = f"# {title}\n\n" + "\n".join(lines) + "\n" + toctree(pages)
        (out / folder).mkdir(exist_ok=True)
        (out / folder / "index.md").write_text(text, encoding="utf-8")
    sections = [f"{folder}/index.md" for folder in TOP if (out / folder / "index.md").exists()]
    with (out / "index.md").open("a", encoding="utf-8") as start:
        start.write(toctree(sections))


def main() -> int:
    """Build into the folder given on the command line, by default build/docs."""
    if len(sys.argv) > 2:
        print("usage: build_docs.py [OUT]", file=sys.stderr)
        return 2
    out = Path(sys.argv[1]) if len(sys.argv) == 2 else ROOT / "build" / "docs"
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    write_pages(PAGES)
    settings = Path(__file__).parent / "docs_site"
    strict = ["--fail-on-warning", "--quiet", "--fresh-env"]
    return build_main([*strict, "-c", str(settings), str(PAGES), str(out)])


if __name__ == "__main__":
    sys.exit(main())

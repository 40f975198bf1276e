"""Build the documentation site, without a network.

    python scripts/build_docs.py [build/docs]

The pages are the Markdown documents of the repository, the commands, the Python API and the charts
of stored benchmarks. Sphinx turns them into HTML; a warning fails the build. A site that is in the
folder already is replaced. Needs the extra `docs`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from sphinx.cmd.build import build_main  # noqa: E402 - the path comes first

from docs_site.api import write_api  # noqa: E402
from docs_site.charts import add_charts  # noqa: E402
from docs_site.commands import write_commands  # noqa: E402
from docs_site.documents import stage, toctree  # noqa: E402

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
    if out.exists() and any(out.iterdir()) and not (out / INVENTORY).exists():
        message = f"build_docs.py: {out} is not empty and holds no site. Choose another folder."
        print(message, file=sys.stderr)
        return 2
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as pages:
        write_pages(Path(pages))
        settings = Path(__file__).parent / "docs_site"
        return build_main([*STRICT, "-c", str(settings), pages, str(out)])


if __name__ == "__main__":
    sys.exit(main())

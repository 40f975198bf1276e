"""Documents become pages: their links lead to pages, and folders get indexes."""

from pathlib import Path

import pytest

from docs_site.documents import stage


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    files = {
        "README.md": "# Top\n\n[First](docs/guides/first.md#part).\n",
        "docs/README.md": "# All\n\n[Second](guides/second.md), [first](guides/first.md#part).\n",
        "docs/guides/first.md": "# First\n\nOne sentence. Another.\n\n## Part\n",
        "docs/guides/second.md": "# Second\n\n"
        "[Up](../../README.md), [all guides](../guides), [a model](../../models/small), "
        "[code](../../tool.py), [data](../../data.bin), [tests](../../tests).\n\n"
        "```text\n[kept](../../tests)\n```\n",
        "docs/guides/third.md": "# Third\n\n| a | table |\n",
        "models/small/README.md": "# small\n\nA model.\n",
        "tool.py": "print('```')\n",
        "data.bin": "",
        "tests/test.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def pages(repository: Path, tmp_path: Path) -> Path:
    stage(repository, tmp_path / "pages")
    return tmp_path / "pages"


def test_links_lead_to_pages_of_documents_folders_and_source_files(pages: Path) -> None:
    text = (pages / "docs/guides/second.md").read_text()
    assert "[Up](../../index.md)" in text
    assert "[all guides](index.md)" in text
    assert "[a model](../../models/small/index.md)" in text
    assert "[code](../../tool.py.md)" in text
    assert "[First](docs/guides/first.md#part)" in (pages / "index.md").read_text()
    assert "print('```')" in (pages / "tool.py.md").read_text()
    assert "[data](../../data.bin)" in text
    assert (pages / "data.bin").is_file()
    assert ", tests." in text  # a folder without a page
    assert "[kept](../../tests)" in text  # code stays as it is


def test_a_link_to_nothing_is_an_error(repository: Path, tmp_path: Path) -> None:
    (repository / "docs/guides/third.md").write_text("# Third\n\n[gone](../gone.md)\n")
    with pytest.raises(LookupError, match=r"docs/guides/third.md: ../gone.md does not exist"):
        stage(repository, tmp_path / "pages")


def test_an_index_lists_pages_in_the_order_of_the_documentation(pages: Path) -> None:
    text = (pages / "docs/guides/index.md").read_text()
    listed = [line for line in text.splitlines() if line.startswith("* ")]
    assert listed == [
        "* [Second](second.md): Up, all guides, a model, code, data, tests.",
        "* [First](first.md): One sentence.",
        "* [Third](third.md)",
    ]
    assert "{toctree}\n:hidden:\n\nsecond.md\nfirst.md\nthird.md\n" in text

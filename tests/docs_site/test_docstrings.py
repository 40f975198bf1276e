"""Docstrings become reStructuredText."""

from pathlib import Path

import pytest

from docs_site.docstrings import converted


def test_names_become_references_and_other_code_stays_code(tmp_path: Path) -> None:
    lines = ["Like `Decoder.serve()`, with `a + b` and ``c``."]
    assert list(converted(lines, tmp_path)) == [
        "Like :name:`Decoder.serve()`, with ``a + b`` and ``c``."
    ]


def test_an_indented_block_becomes_python_and_is_not_changed(tmp_path: Path) -> None:
    lines = ["Runs.", "", "    run(`x`)", "", "    end()", "", "Then `stop`."]
    assert list(converted(lines, tmp_path)) == [
        *("Runs.", "", ".. code-block:: python", "", "    run(`x`)", "", "    end()", ""),
        "Then :name:`stop`.",
    ]


def test_a_decision_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="docs/adr/0008"):
        list(converted(["Packed (docs/adr/0008)."], tmp_path))

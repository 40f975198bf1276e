"""Docstrings become reStructuredText."""

from pathlib import Path

import pytest

from docs_site.docstrings import converted, with_types_in_signatures


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


def test_sections_and_lists_are_no_code(tmp_path: Path) -> None:
    lines = ["Args:", "    a: first.", "", "    b: second.", "", "* item", "", "      more"]
    assert list(converted(lines, tmp_path)) == lines


def test_a_decision_becomes_a_link_to_its_page(tmp_path: Path) -> None:
    (tmp_path / "0007-weights.md").touch()
    assert list(converted(["Packed (docs/adr/0007)."], tmp_path)) == [
        "Packed (:doc:`decision 7 </docs/adr/0007-weights>`)."
    ]


def test_a_decision_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="docs/adr/0008"):
        list(converted(["Packed (docs/adr/0008)."], tmp_path))


def test_types_of_attributes_move_next_to_their_names() -> None:
    lines = [
        *(".. attribute:: a", "", "   first,", "   in two lines", "", "   :type: int", ""),
        *(".. attribute:: b", "", "   second", "", "   :type: typing.Any", "", "Text."),
    ]
    assert list(with_types_in_signatures(lines)) == [
        *(".. attribute:: a", "   :type: int", "", "   first,", "   in two lines", "", ""),
        *(".. attribute:: b", "   :type: Any", "", "   second", "", "", "Text."),
    ]

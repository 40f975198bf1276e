"""Docstrings in Google style with Markdown's backticks, as reStructuredText for Sphinx."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from docs_site.names import ROLE

_DECISION = re.compile(r"\bdocs/adr/(\d{4})\b(?!-)")
_BACKTICKS = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
_ITEM = re.compile(r"\s*([*-]|\d+\.) ")
_CODE_INDENT = 4


def converted(lines: Iterable[str], decisions: Path) -> Iterator[str]:
    """Yield the lines of a docstring in reStructuredText, before napoleon reads its sections.

    Args:
        lines: the docstring. A block indented further than the text above it is Python.
        decisions: folder of decision records, which `docs/adr/0001` names.
    """
    text_indent, is_item, is_new_block = 0, False, False
    code_indent: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            is_new_block = True
            yield line
            continue
        if code_indent is not None and indent < code_indent:
            code_indent = None
        starts_block = code_indent is None and is_new_block and not is_item
        if starts_block and indent - text_indent >= _CODE_INDENT:
            code_indent = indent
            yield from (" " * text_indent + ".. code-block:: python", "")
        is_new_block = False
        if code_indent is None:
            text_indent, is_item = indent, _ITEM.match(line) is not None
            line = _with_decisions(with_names(line), decisions)
        yield line


def with_names(text: str) -> str:
    """Text in reStructuredText: backticks become code, and names links."""

    def code(match: re.Match[str]) -> str:
        return f":{ROLE}:`{match[1]}`" if _NAME.fullmatch(match[1]) else f"``{match[1]}``"

    return _BACKTICKS.sub(code, text)


def _with_decisions(text: str, decisions: Path) -> str:
    def decision(match: re.Match[str]) -> str:
        page = next(decisions.glob(f"{match[1]}-*.md"), None)
        if page is None:
            raise LookupError(f"{match[0]} is named in a docstring and does not exist.")
        return f":doc:`decision {int(match[1])} </docs/adr/{page.stem}>`"

    return _DECISION.sub(decision, text)

"""Docstrings in Google style with Markdown's backticks, as reStructuredText for Sphinx."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole

ROLE = "name"
"""Role of text in single backticks: a link if it names something documented, code otherwise."""

_DECISION = re.compile(r"\bdocs/adr/(\d{4})\b(?!-)")
_BACKTICKS = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
_ITEM = re.compile(r"\s*([*-]|\d+\.) ")
_CODE_INDENT = 4


class NameRole(XRefRole):
    """A reference to a Python object that may be missing."""

    def process_link(
        self,
        env: BuildEnvironment,
        refnode: nodes.Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        """Fill in the scope in which the name is looked up."""
        refnode["py:module"] = env.ref_context.get("py:module")
        refnode["py:class"] = env.ref_context.get("py:class")
        refnode["refspecific"] = True
        refnode["may_be_missing"] = True
        return title, target.removesuffix("()")


def without_target(
    _app: Sphinx, _env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.TextElement | None:
    """Show a name as code if nothing documents it."""
    return shown if node.get("may_be_missing") else None


def converted(lines: Sequence[str], decisions: Path) -> Iterator[str]:
    """Yield the lines of a docstring in reStructuredText, before napoleon reads its sections.

    Args:
        lines: the docstring.
        decisions: folder of decision records, for links to them.
    """
    before, is_code, is_new_block = "", False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            is_new_block = True
            yield line
            continue
        if is_new_block and not is_code:
            deeper = indent - (len(before) - len(before.lstrip())) >= _CODE_INDENT
            if before and deeper and not _ITEM.match(before):
                is_code, code_indent = True, indent
                yield " " * (indent - _CODE_INDENT) + ".. code-block:: python"
                yield ""
        elif is_code and indent < code_indent:
            is_code = False
        is_new_block = False
        if not is_code:
            line = _inline(line, decisions)
            before = line
        yield line


def _inline(line: str, decisions: Path) -> str:
    def decision(match: re.Match[str]) -> str:
        (page,) = decisions.glob(f"{match[1]}-*.md")
        return f":doc:`decision {int(match[1])} </docs/adr/{page.stem}>`"

    def code(match: re.Match[str]) -> str:
        text = match[1]
        return f":{ROLE}:`{text}`" if _NAME.fullmatch(text) else f"``{text}``"

    return _DECISION.sub(decision, _BACKTICKS.sub(code, line))

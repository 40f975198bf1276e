"""Processes of a first load in which something else happens."""

import textwrap

import pytest

from ortolan.runtime.isolation import first_load

_STEP = """
from ortolan.runtime.isolation import child
def first_step(task):
{body}
child.first_step = first_step
child.main()
"""


def replace_step(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let the process, limited as it is, do this in place of opening a bundle."""
    replace_process(monkeypatch, _STEP.format(body=textwrap.indent(body, "    ")))


def replace_process(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the process be this code alone."""
    monkeypatch.setattr(first_load, "_CHILD", ("-c", code))

"""Rendered templates, compared with those of transformers."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from transformers.utils.chat_template_utils import _compile_jinja_template

from ortolan.runtime.jinja.template import Template

NOW = datetime(2026, 11, 23, 15, 0)

VALUES: dict[str, Any] = {
    "x": {
        "a": 1,
        "b": [1, 2, 3],
        "n": 5,
        "s": "  a,b,a ",
        "l": [{"r": "u", "t": 1}, {"r": "A"}, {"r": "s", "t": None}],
        "\u00e9": '<&>"\u2028',
    },
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}],
}


def rendered(source: str, **values: Any) -> str:
    return Template(source).render(values, functions={}, now=NOW)


CASES = dict(
    block.split("\n", 1)
    for block in ("\n" + (Path(__file__).parent / "cases.txt").read_text()).split("\n### ")[1:]
)
"""Templates by what they show."""


@pytest.mark.parametrize("source", CASES.values(), ids=CASES)
def test_renders_what_transformers_renders(source: str) -> None:
    expected = _compile_jinja_template(source).render(**VALUES)
    assert expected.strip() != ""
    assert rendered(source, **VALUES) == expected


def test_dates_are_formatted() -> None:
    assert rendered("{{ strftime_now('%d %b %Y') }}{{ strftime_now('%-d') }}") == "23 Nov 202623"


def test_values_stay_unchanged() -> None:
    source = "{% set x = x + [1] %}{% set ns = namespace(y=y) %}{% set ns.y = 2 %}{{ x }}"
    x, y = [0], {"a": 1}
    assert rendered(source, x=x, y=y) == "[0, 1]"
    assert (x, y) == ([0], {"a": 1})


WRONG = (
    "{% if %}",
    "a\n{{ nothing.at.all }}",
    "{{ 1 + 'a' }}",
    "{{ [1, 2, 3].frob() }}",
    "{{ 1 is frob }}",
    "{{ 1 | frob }}",
    "{{ '<b>' | urlize }}",
    "{{ 'a'.center(9) }}",
    "{% include 'other' %}",
    "{% import 'other' as other %}",
    "{% from 'other' import one %}",
    "{% extends 'other' %}",
    "{% block a scoped %}{% endblock %}",
    "{{ namespace }}",
    "{{ [nothing] | tojson }}",
    "{% set a.b = 1 %}",
    "{{ 1 / 0 }}",
)


@pytest.mark.parametrize("source", WRONG)
def test_a_template_that_fails_is_a_typed_error(source: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: rendered(source)) == snapshot

"""Templates that try to exhaust time or memory, or to reach Python objects."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.jinja.test_template import rendered

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.limits import MAX_TEMPLATE_BYTES

GROWING = (
    "{%% set ns = namespace(s='xxxxxxxx', l=[1], i=7, t=(1,)) %%}"
    "{%% for i in range(60) %%}{%% set %s %%}{%% endfor %%}{{ ns.s }}{{ ns.l }}{{ ns.i }}{{ ns.t }}"
)

TEMPLATES = json.loads((Path(__file__).parent / "hostile.json").read_text())

HOSTILE = {
    **TEMPLATES["hostile"],
    "nested_loops": "{% for a in range(9999) %}" * 3 + "x" + "{% endfor %}" * 3,
    "long_output": "{% for a in range(9999) %}" + "x" * 10_000 + "{% endfor %}",
    "long_number": "{{ " + "9" * 5_000 + " }}",
    "concatenations": "{% set s = 'x' * 200_000 %}{{ s" + " ~ s" * 4_000 + " }}",
    "long_body": "{% for a in range(99_999) %}{% set x = [" + "loop.index, " * 3_000 + "] %}"
    "{% endfor %}",
    "long_test": "{% for a in range(99_999) if b" + " or b" * 900 + " %}{% endfor %}",
    "includes": "".join(f"{{%set a{i}=1%}}" for i in range(1_000)) + "{%include 'b'%}" * 1_000,
    "loops_in_loops": "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "brackets": "{{ " + "[" * 5_400 + "]" * 5_400 + " }}",
    "parentheses": "{{ " + "(" * 5_400 + "1" + ")" * 5_400 + " }}",
    "additions": "{{ 1" + "+1" * 5_400 + " }}",
    "signs": "{{ " + "-" * 9_000 + "1 }}",
    "filters": "{{ 'a'" + "|upper" * 3_600 + " }}",
    "attributes": "{{ a" + ".b" * 5_400 + " }}",
    "choices": "{{ 1" + " if 1 else 2" * 2_400 + " }}",
    "blocks": "{% if 1 %}" * 2_400 + "{% endif %}" * 2_400,
    "kept_lists": "{% set n = namespace(x=0) %}{% for a in range(99_999) %}"
    "{% set n.x = [[" + "1, " * 3_000 + "], n.x] %}{% endfor %}",
    "kept_texts": "{% set n = namespace(x=0) %}{% for a in range(99_999) %}"
    "{% set n.x = ['" + "x" * 90_000 + "'[1:], n.x] %}{% endfor %}",
    "kept_captures": "{% set n = namespace(x=0) %}{% for a in range(99_999) %}{% set t %}"
    + "x" * 90_000
    + "{% endset %}{% set n.x = [t, n.x] %}{% endfor %}",
    "too_many_words": "{{ a }}" * 10_000,
    "too_long": "x" * (MAX_TEMPLATE_BYTES + 1),
    **{name: GROWING % growth for name, growth in TEMPLATES["growths"].items()},
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_an_endless_template_is_stopped_soon_with_a_typed_error(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"[Uu]se another"):
        rendered(source)
    assert time.process_time() - start < 5  # 0.1 s on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("source", TEMPLATES["large"].values(), ids=TEMPLATES["large"])
def test_a_large_message_does_not_lift_the_bounds(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"[Uu]se another"):
        rendered(source, t="x" * 3_999_999 + "\u4e00")
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ x.items.__self__.a }}",
        "{{ namespace.__globals__.a }}",
        "{{ '{0.__class__.__mro__}'.format(x) }}",
        "{{ x | map(attribute='__class__.__mro__') | list | first | first }}",
        "{{ loop.__init__.__globals__ }}",
        "{{ dict.fromkeys([1]) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ x.update({'b': 2}) }}",
        "{{ x.pop('a') }}",
        "{{ l.append(1) }}",
        "{{ l.extend(l) }}",
        "{{ l.clear() }}",
        "{{ cycler.__init__ }}{{ lipsum() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = dict %}{{ ns }}",
        "{{ namespace(__call__=range)(9) }}",
    ],
)
def test_a_template_can_neither_reach_objects_nor_change_values(source: str) -> None:
    values: dict[str, Any] = {"x": {"a": 1}, "l": [1]}
    with pytest.raises(ChatTemplateError):
        rendered(source, **values)
    assert values == {"x": {"a": 1}, "l": [1]}


def test_dunder_attributes_are_undefined() -> None:
    source = (
        "{{ x.__class__ }}{{ [].__class__ }}{{ x['__class__'] }}{{ '{0.__class__}'.format(x) }}"
    )
    assert rendered(source, x={}) == ""


def test_the_budget_grows_with_the_messages() -> None:
    long = [{"role": "user", "content": "word " * 20_000}] * 100
    source = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content | trim).replace('w', 'W') "
        "}}{% for t in messages[:5] %}{{ t.role }}{% endfor %}{% endfor %}"
    )
    assert len(rendered(source, messages=long)) == 100 * (8 + 99_999 + 20)

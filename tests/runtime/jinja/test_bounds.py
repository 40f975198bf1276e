"""Templates that try to exhaust time or memory, or to reach Python objects."""

import resource
import time
from typing import Any

import pytest
from tests.runtime.jinja.test_template import rendered

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.limits import MAX_TEMPLATE_BYTES

GROWING = (
    "{%% set ns = namespace(s='xxxxxxxx', l=[1], i=7, t=(1,)) %%}"
    "{%% for i in range(60) %%}{%% set %s %%}{%% endfor %%}{{ ns.s }}{{ ns.l }}{{ ns.i }}{{ ns.t }}"
)

GROWTHS = {
    "concatenation": "ns.s = ns.s ~ ns.s",
    "addition": "ns.s = ns.s + ns.s",
    "repetition": "ns.s = ns.s * 2",
    "replace": "ns.s = ns.s.replace('x', 'xx')",
    "replace_filter": "ns.s = ns.s | replace('x', 'xx')",
    "replace_of_nothing": "ns.s = ns.s.replace('', ns.s)",
    "join": "ns.s = ns.s.join([ns.s, ns.s])",
    "join_filter": "ns.s = [ns.s, ns.s] | join",
    "letters": "ns.s = ns.s | list | join('xx')",
    "percent": "ns.s = '%s%s' | format(ns.s, ns.s)",
    "percent_names": "ns.s = '%(a)s%(a)s' | format(a=ns.s)",
    "format": "ns.s = '{0}{0}'.format(ns.s)",
    "tojson": "ns.s = [ns.s, ns.s] | tojson",
    "lists": "ns.l = ns.l + ns.l",
    "repeated_lists": "ns.l = ns.l * 2",
    "lists_of_lists": "ns.l = [ns.l, ns.l]",
    "lists_of_equal_lists": "ns.l = [[ns.l, 1] == [ns.l, 1], ns.l, ns.l]",
    "tuples_as_keys": "ns.t = (ns.t, ns.t)",
    "key": "ns.t = (ns.t, ns.t, {}.get(ns.t))",
    "upper": "ns.l = [ns.l, ns.l, ns.l is upper]",
    "numbers": "ns.i = ns.i * ns.i",
    "powers": "ns.i = ns.i ** 60",
    "unique": "ns.l = (ns.l + [ns.l, ns.l]) | unique | list",
    "maps": "ns.l = (ns.l + ns.l) | map('string') | list",
}

HOSTILE = {
    "nested_loops": "{% for a in range(9999) %}" * 3 + "x" + "{% endfor %}" * 3,
    "long_output": "{% for a in range(9999) %}" + "x" * 10_000 + "{% endfor %}",
    "range": "{{ range(10 ** 18) | length }}",
    "repeat": "{{ 'x' * 10 ** 12 }}",
    "repeated_list": "{{ [1] * 10 ** 12 }}",
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "caller": "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    "indent": "{{ 'x\ny' | indent(10 ** 12) }}",
    "json_indent": "{{ [1] | tojson(indent=10 ** 12) }}",
    "json_margins": "{% set n = namespace(x=range(9000) | list) %}{% for i in range(250) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson(indent=32) }}",
    "json_separators": "{{ (range(999) | list) | tojson(separators=['x' * 9_999, ':']) }}",
    "format_width": "{{ '{:999999999}'.format(1) }}",
    "format_nested": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "percent_width": "{{ '%999999999d' % 1 }}",
    "percent_width_of_name": "{{ '%(a)999999999d' | format(a=1) }}",
    "percent_precision": "{{ '%.999999999f' % 1.5 }}",
    "percent_star": "{{ '%*d' % (10 ** 9, 1) }}",
    "date_width": "{{ strftime_now('%-999999999Y') }}",
    "date_length": "{{ strftime_now('%c' * 1000) }}",
    "huge_number": "{{ 10 ** 10 ** 10 }}",
    "long_number": "{{ " + "9" * 5_000 + " }}",
    "round": "{{ 5 | round(-10 ** 9) }}",
    "bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "digits": "{% set i = ('f' * 999_999) | int(0, 32) %}{{ i * i }}",
    "concatenations": "{% set s = 'x' * 200_000 %}{{ s" + " ~ s" * 4_000 + " }}",
    "last_occurrence": "{% set s = 'a' * 500_000 %}{{ s.rfind('ab' ~ s[:250_000]) }}",
    "stripped": "{% set s = 'a' * 500_000 %}{{ s.strip('b' * 500_000 ~ 'a') }}",
    "trimmed": "{% set s = 'a' * 500_000 %}{{ s | trim('b' * 500_000 ~ 'a') }}",
    "words": "{% set s = 'ab ' * 600_000 %}{{ s.split() | length }}",
    "lines": "{% set s = 'ab\n' * 600_000 %}{{ s.splitlines() | length }}",
    "equal_strings": "{% set s = 'a' * 400_000 %}{% set t = s ~ '' %}"
    "{% for i in range(99_999) %}{% if s == t %}{% endif %}{% endfor %}",
    "filtered_loops": "{% for a in range(9_999) %}{% for b in range(9_999) if false %}"
    "{% endfor %}{% endfor %}",
    "selections": "{% for a in range(9_999) %}{{ range(9_999) | select('gt', 5) | list | length }}"
    "{% endfor %}",
    "long_body": "{% for a in range(99_999) %}{% set x = [" + "loop.index, " * 3_000 + "] %}"
    "{% endfor %}",
    "long_test": "{% for a in range(99_999) if b" + " or b" * 900 + " %}{% endfor %}",
    "spread": "{% macro m() %}{% endmacro %}{% for i in range(9_999) %}{{ m(*range(99_999)) }}"
    "{% endfor %}",
    "colliding_numbers": "{{ range(0, 9_999 * (2 ** 61 - 1), 2 ** 61 - 1) | unique | list }}",
    "recursive_loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "includes": "".join(f"{{%set a{i}=1%}}" for i in range(1_000)) + "{%include 'b'%}" * 1_000,
    "setting": "{% autoescape 'x' * 10 ** 12 %}{% endautoescape %}",
    "loops_in_loops": "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "namespace_of_itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "deep_list": "{% set n = namespace(x=[]) %}{% for i in range(9000) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | string }}",
    "deep_json": "{% set n = namespace(x=[]) %}{% for i in range(2500) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
    "brackets": "{{ " + "[" * 5_400 + "]" * 5_400 + " }}",
    "parentheses": "{{ " + "(" * 5_400 + "1" + ")" * 5_400 + " }}",
    "additions": "{{ 1" + "+1" * 5_400 + " }}",
    "signs": "{{ " + "-" * 9_000 + "1 }}",
    "filters": "{{ 'a'" + "|upper" * 3_600 + " }}",
    "attributes": "{{ a" + ".b" * 5_400 + " }}",
    "choices": "{{ 1" + " if 1 else 2" * 2_400 + " }}",
    "blocks": "{% if 1 %}" * 2_400 + "{% endif %}" * 2_400,
    "too_many_words": "{{ a }}" * 10_000,
    "too_long": "x" * (MAX_TEMPLATE_BYTES + 1),
    **{name: GROWING % growth for name, growth in GROWTHS.items()},
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_an_endless_template_is_stopped_soon_with_a_typed_error(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"[Uu]se another"):
        rendered(source)
    assert time.process_time() - start < 2  # 0.1 s on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


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

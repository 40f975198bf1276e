from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from ortolan.runtime.errors import ChatTemplateError
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


CASES = {
    "items_of_values": (
        "{{ x.a }}|{{ x['a'] }}|{{ x.nope }}|{{ x.b[0] }}|{{ x.b[-1] }}|{{ x.b[9] }}"
    ),
    "values_as_text": (
        "{{ x }} {{ x|string }} {{ x.b }} {{ none }} {{ true }} {{ 1.0 }} {{ 3/2 }}"
        " {{ 7//2 }} {{ 7%3 }} {{ 2**5 }} {{ -x.n }} {{ +3 }}"
    ),
    "tojson": (
        "{{ x|tojson }} {{ x|tojson(indent=2) }} {{ x|tojson(ensure_ascii=True) }}"
        " {{ x|tojson(separators=(',',':')) }} {{ x|tojson(sort_keys=true) }}"
    ),
    "loop_variables": (
        "{% for i in x.b %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}"
        "{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}"
        "{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ loop.changed(i) }}{{ loop.depth }}"
        "{% else %}none{% endfor %}"
    ),
    "loops_else_and_unpacking": (
        "{% for i in [] %}{% else %}empty{% endfor %}{% for k, v in x.items() %}{{ k }}"
        "={{ v }};{% endfor %}{% for k in x %}{{ k }}{% endfor %}"
    ),
    "break_continue_and_filtered_loops": (
        "{% for i in range(10) if i % 2 == 0 %}{% if i == 6 %}{% break %}{% endif %}"
        "{% if i == 2 %}{% continue %}{% endif %}{{ i }}:{{ loop.index }}/{{ loop.length }}"
        " {% endfor %}"
    ),
    "scopes_of_loops": (
        "{% set a = 1 %}{% for i in [1,2] %}{{ a }}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}"
        "{% if true %}{% set a = 5 %}{% endif %}{{ a }}"
    ),
    "namespaces": (
        "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}"
        "{% set ns.c = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.zzz }}"
        "{{ ns.zzz is defined }}"
    ),
    "macros": (
        "{% macro m(a, b='B', c=a) %}[{{ a }}{{ b }}{{ c }}{{ caller() if caller else '' }}"
        "]{% endmacro %}{{ m(1) }}{{ m(1,2,3) }}{{ m(c=1,a=2) }}{% call m('x') %}"
        "called{% endcall %}{{ m() }}"
    ),
    "recursive_macros": (
        "{% macro fact(n) %}{% if n > 0 %}{{ n }}{{ fact(n-1) }}{% endif %}{% endmacro %}"
        "{{ fact(5) }}"
    ),
    "methods_of_strings": (
        "{{ x.s.strip() }}|{{ x.s|trim }}|{{ x.s.split(',') }}|{{ x.s.replace('a','b') }}"
        "|{{ x.s.upper() }}|{{ x.s|title }}|{{ x.s|capitalize }}|{{ x.s.startswith('  a') }}"
        "|{{ x.s[1:3] }}|{{ x.s[::-1] }}|{{ x.s|length }}|{{ x.s.lstrip() }}"
        "|{{ x.s.rstrip(' ') }}|{{ x.s.find('b') }}"
    ),
    "split_in_and_slices": (
        "{{ 'a</think>b'.split('</think>')[-1] }}{{ 'a</think>b'.split('</think>', 1)[0] }}"
        "{{ 'x' in 'xyz' }}{{ 'a' not in x }}{{ 1 in [1,2] }}{{ x.b[1:] }}{{ x.b[:-1] }}"
        "{{ x.b|reverse|list }}"
    ),
    "choices_and_defaults": (
        "{{ 'yes' if x.a else 'no' }}{{ 'q' if x.nope }}{{ x.nope or 'dflt' }}"
        "{{ x.a and 'and' }}{{ not x.a }}{{ x.nope|default('d') }}{{ ''|default('d', true) }}"
        "{{ x.nope|d }}"
    ),
    "filters_of_lists": (
        "{{ x.b|join(', ') }} {{ x.l|map(attribute='r')|join('|') }}"
        " {{ x.l|selectattr('r','equalto','u')|list|length }}"
        " {{ x.l|rejectattr('r','equalto','u')|list }} {{ x.l|selectattr('t')|list }}"
        " {{ x.l|selectattr('t','defined')|list }} {{ x.b|map('string')|list }}"
        " {{ x.b|select('odd')|list }} {{ x.b|reject('gt',1)|list }}"
    ),
    "tests": (
        "{{ x is mapping }}{{ x.b is sequence }}{{ x.s is string }}{{ x.n is number }}"
        "{{ x.nope is defined }}{{ x.nope is undefined }}{{ none is none }}"
        "{{ x.b is iterable }}{{ true is boolean }}{{ x.n is integer }}{{ 1.5 is float }}"
        "{{ x.a is true }}{{ 4 is divisibleby 2 }}{{ 'a' is in 'abc' }}{{ x.n is not none }}"
        "{{ 2 is even }}{{ 1 is eq 1 }}{{ 1 is sameas 1 }}"
    ),
    "sorting_and_numbers": (
        "{{ x.l|sort(attribute='r')|map(attribute='r')|list }}"
        "{{ [3,1,2]|sort(reverse=true) }}{{ ['b','A','a']|sort }}"
        "{{ ['b','A','a']|unique|list }}{{ x|dictsort|list }}{{ [1,2]|sum }}{{ [3,1]|max }}"
        "{{ [3,1]|min }}{{ x|items|list }}{{ 'abc'|first }}{{ [1,2]|last }}{{ 3.7|int }}"
        "{{ '12'|int }}{{ 'z'|int }}{{ '1.5'|float }}{{ 3.456|round(2) }}{{ -3|abs }}"
        "{{ 'a b c'|wordcount }}"
    ),
    "indent": (
        "{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb\\n'|indent(2, true) }}"
        "|{{ 'a\\n\\nb\\n'|indent(2, blank=true) }}|{{ 'a\\nb'|indent('>>', first=true) }}"
        "|{{ ''|indent }}"
    ),
    "title_format_and_concatenation": (
        "{{ \"it's-a (test) [x]{y}<z foo\"|title }} {{ 'ÄÖ'|lower }}"
        " {{ '%s and %d'|format('a', 3) }} {{ '%s' % 'x' }} {{ '{} {a}'.format(1, a=2) }}"
        " {{ 'a' ~ 1 ~ none ~ x.nope }}"
    ),
    "blocks_that_are_captured": (
        "{% set t %}cap{{ 1 }}{% endset %}{{ t }}{% set t | upper %}cap{{ 1 }}{% endset %}"
        "{{ t }}{% filter upper %}abc{% endfilter %}{% filter upper|replace('A','z') %}"
        "abc{% endfilter %}{% with a=1, b=2 %}{{ a+b }}{% endwith %}"
    ),
    "white_space": (
        "{%- if true -%}   x   {%- endif %}   {# comment #}  y {%+ if true %}z{% endif %}"
    ),
    "trimmed_blocks": "   {% if true %}\n   line\n   {% endif %}\nend\n",
    "generation_and_constructors": (
        "{% generation %}gen{% set q = 1 %}{% endgeneration %}{{ q is defined }}"
        "{% set a, b = [1, 2] %}{{ a }}{{ b }}{{ (1,) }}{{ {'a': 1, 2: [3]} }}{{ dict(a=1) }}"
        "{{ [1] + [2] }}{{ 'a' * 3 }}{{ [0] * 2 }}{{ 'ab'[0] }}{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}"
        "{{ 'a' == 'a' != 'b' }}"
    ),
    "methods_of_dictionaries": (
        "{{ x.get('a') }}{{ x.get('zz', 'dd') }}{{ x.keys()|list }}"
        "{{ x.values()|list|length }}{{ x.items()|list|length }}{{ 'x y'.split()|last }}"
        "{{ '\\n'.join(['a','b']) }}{{ 'a' 'b' }}{{ \"q\\\"q\" }}"
        "{{ 'tab\\tnl\\n\\u00e9' }}{{ 1_000 }}{{ 1e3 }}{{ 0x1f }}"
    ),
    "what_filters_give": (
        "{{ x.b|map('string') is sequence }}{{ 'empty' if x.b|select('gt', 9) else 'none' }}"
        "{% set chosen = x.b|select('odd') %}{{ chosen|join }}{{ chosen|join }}"
        "{% for i in x.b|map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}"
    ),
    "escaped_text": (
        "{{ '<a>' + ('<b>'|safe) }}{{ '<a>' ~ ('<b>'|safe) }}{{ '<b>'|e }}{{ x|tojson|safe }}"
        "{% autoescape true %}{{ '<a>' }}{{ '<b>'|safe }}{% endautoescape %}"
    ),
    "recursive_loops": (
        "{% for i in [1, [2, [3]]] recursive %}{% if i is sequence %}({{ loop(i) }})"
        "{% else %}{{ i }}{{ loop.depth }}{% endif %}{% endfor %}"
    ),
    "comparisons": (
        "{{ x.b == [1, 2, 3] }}{{ x.l[0] in x.l }}{{ (1, 2) in {(1, 2): 3} }}"
        "{{ {(1, 2): 3}[(1, 2)] }}{{ 1 < x.n <= 5 != 6 }}{{ x.b[:2] == x.b[::2] }}"
    ),
    "messages_backwards": (
        "{{ messages[0].role }}{{ messages[-1]['content'] }}{{ (messages|last).role }}"
        "{{ messages[1:]|length }}{{ loop is defined }}{% for m in messages[::-1] %}"
        "{{ m.role }}{% endfor %}{% for m in messages|reverse %}{{ m.role }}"
        "{% set _ = loop.index %}{% endfor %}"
    ),
    "precedence": (
        "{{ x.a|string|length }} {{ (x.b|length) - 1 }} {{ x.b|length - 1 }}"
        " {{ not x.nope is defined }} {{ 'a' if not x.a is none else 'b' }}"
        " {{ [1,2,3][1:][0] }} {{ x['b'][0]|string + 'x' }} {{ 'abc'|replace('b', 'x') }}"
        " {{ 'aaa'|replace('a','b',2) }} {{ x|length }}"
    ),
}


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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "Line 1"),
        ("a\n{{ nothing.at.all }}", "Line 2 .*'nothing' is undefined"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ [1, 2, 3].frob() }}", "'list object' has no attribute 'frob'"),
        ("{{ 1 is frob }}", "Line 1 .*No test named 'frob'"),
        ("{{ 1 | frob }}", "Line 1 .*No filter named 'frob'"),
        ("{{ '<b>' | urlize }}", "filter 'urlize'"),
        ("{{ 'a'.center(9) }}", "center"),
        ("{% include 'other' %}", "the statement 'include'"),
        ("{% import 'other' as other %}", "the statement 'import'"),
        ("{% from 'other' import one %}", "the statement 'fromimport'"),
        ("{% extends 'other' %}", "the statement 'extends'"),
        ("{% block a scoped %}{% endblock %}", "the statement 'block'"),
        ("{{ namespace }}", "function as data"),
        ("{{ [nothing] | tojson }}", "not JSON serializable"),
        ("{% set a.b = 1 %}", "non-namespace object"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_fails_is_a_typed_error(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        rendered(source)

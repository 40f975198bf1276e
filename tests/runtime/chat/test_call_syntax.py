"""Syntaxes of calls: a complete call or none, with the types of the schema."""

import time
from dataclasses import replace
from typing import Any

import pytest
from tests.runtime.chat.written_calls import CALLS, ONE, TWO, form, taken

from ortolan.runtime.chat.parser import ReplyParser


def wrapped(family: str, body: str) -> str:
    """Put text between the markers of a call."""
    calls = form(family).calls
    return f"{calls.open}{body}{calls.close}"


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"name": "f", "arguments": ' + "[" * 100_000,
        '{"name": "f", "arguments": "' + "[" * 100_000 + '"}',
        "f(" * 5_000,
        "f(x=" + "-" * 10_000 + "1)",
        "f(x=" + "(" * 8_000 + ")" * 8_000 + ")",
        "f(x=__import__('os').system('true'))",
        "f(x={1, 2})",
        "f(x=b'1')",
        "f(**x)",
        "f(1)",
        "1",
        "[1]",
        '{"name": 7}',
        '{"name": "f", "arguments": 7}',
        "<function=f",
        "",
    ],
)
@pytest.mark.parametrize("family", ["qwen", "lfm", "qwen-coder", "mistral-11"])
def test_hostile_text_is_not_a_call(family: str, body: str) -> None:
    text = wrapped(family, body)
    assert taken([text], form(family)) == (text, "", ())


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=f><parameter=n>1</parameter>" + "<parameter=a>" * 8_000,
        "<tool_call>" * 8_000,
        '<tool_call><function=f><parameter=a>"' * 1_000,
        ("<tool_call>" + "<function=f><parameter=a>" * 40 + "</tool_call>" * 40) * 15,
        "<tool_call><function=f>" + "</parameter> " * 8_000 + " " * 20_000 + "</tool_call>",
    ],
)
@pytest.mark.parametrize("family", ["qwen", "qwen-coder", "glm"])
def test_endless_text_costs_no_time_and_is_not_a_call(family: str, text: str) -> None:
    start = time.process_time()
    assert taken([text], form(family)) == (text, "", ())
    assert time.process_time() - start < 2


def read(family: str, body: str, schema: Any) -> Any:
    """Return the argument `a` of the only call."""
    parser = ReplyParser(form(family), tools=[{"function": {"name": "f", "parameters": schema}}])
    (piece,) = [*parser.feed(wrapped(family, body)), *parser.finish()]
    assert piece.tool_call is not None
    return piece.tool_call.arguments["a"]


TAGS = {
    "qwen-coder": "<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n",
    "seed": "<function=f><parameter=a>{}</parameter></function>",
    "glm": "f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n",
}


@pytest.mark.parametrize(
    "value",
    [
        "x </parameter> y",
        "</parameter>\n</function> y </tool_call> z",
        "<parameter=b>\n1</parameter>",
        "</arg_value> <arg_key>",
        "</arg_value>x </tool_call>",
        "<tool_call>\n</seed:tool_call></function> z",
    ],
)
@pytest.mark.parametrize("family", TAGS)
def test_a_value_may_hold_marks(family: str, value: str) -> None:
    assert read(family, TAGS[family].format(value), {}) == value


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (
            "qwen-coder",
            "<function=f>\n<parameter=n>\n1\n<parameter=s>\na\n</parameter>\n</function>",
        ),
        ("seed", "<function=f>\n<parameter=n>1\n<parameter=s>a\n</parameter>\n</function>\n"),
        (
            "glm",
            "f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s\n"
            "<arg_value>a</arg_value>\n",
        ),
    ],
)
def test_a_value_that_is_not_closed_does_not_swallow_the_next(family: str, body: str) -> None:
    text = wrapped(family, body)
    assert taken([text], form(family)) == (text, "", ())
    assert taken([text + CALLS[family]], form(family))[2] == (ONE, TWO)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"type": ["number", "null"]}, "2.5", 2.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"type": ["string", "integer"]}, "3", "3"),
        ({"type": "string"}, "True", "True"),
        ({"type": "array"}, "['a', True, None, (1, 2)]", ["a", True, None, [1, 2]]),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', ["a"]),
        ({"$ref": "#/$defs/n"}, "4", 4),
        ({"$ref": "#/$defs/none"}, "4", "4"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": True}, "True", True),
        ({"allOf": [{"$ref": "#/$defs/again"}]}, "4", "4"),
        ({"type": "integer", "nullable": True}, "None", None),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "array"}, "{1, 2}", "{1, 2}"),
        ({"type": "integer"}, "three", "three"),
        ({"type": [{}]}, "3", "3"),
    ],
)
@pytest.mark.parametrize("family", TAGS)
def test_values_have_the_types_of_the_schema(
    family: str, schema: Any, text: str, value: Any
) -> None:
    definitions = {"n": {"type": "integer"}, "again": {"$ref": "#/$defs/again"}}
    whole = {"properties": {"a": schema}, "$defs": definitions}
    got = read(family, TAGS[family].format(text), whole)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    "family", ["qwen", "nemotron", "mistral-11", "functionary-3.2", "lfm", "command-r-plus"]
)
def test_strings_may_hold_marks(family: str) -> None:
    calls = form(family).calls
    value = f"a {calls.close} b {calls.open} c"
    text = CALLS[family].replace("a b", value)
    expected = replace(ONE, arguments={"n": 1, "s": value})
    assert taken([text], form(family)) == ("", "", (expected, TWO))
    assert taken([*text], form(family)) == ("", "", (expected, TWO))


def test_a_string_that_never_ends_does_not_swallow_the_next_call() -> None:
    bad = '<tool_call>{"name": "f", "arguments": {"s": "a}}</tool_call>'
    content, _, calls = taken([bad + CALLS["qwen"]], form("qwen"))
    assert (content, calls) == (bad, (ONE, TWO))


@pytest.mark.parametrize("value", ["flag=true", "flag=True"])
def test_constants_of_json_are_read_in_python(value: str) -> None:
    text = f"<|tool_call_start|>[f({value}, more=[null, false])]<|tool_call_end|>"
    (call,) = taken([text], form("lfm"))[2]
    assert call.arguments == {"flag": True, "more": [None, False]}


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a": 1, "a": 2}}',
        '{"name": "f", "city": "Paris"}',
        '{"name": "f", "arguments": {}, "parameters": {"a": 1}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": "{"}',
        '{"name": "f", "arguments": 0}',
    ],
)
def test_no_argument_is_dropped(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert taken([text], form("qwen")) == (text, "", ())


@pytest.mark.parametrize("function", [{"parameters": None}, {"parameters": {"properties": [1]}}])
@pytest.mark.parametrize("family", ["qwen-coder", "glm"])
def test_a_schema_without_properties_leaves_texts(family: str, function: Any) -> None:
    parser = ReplyParser(form(family), tools=[{"function": {"name": "f", **function}}])
    first, *_ = [*parser.feed(CALLS[family]), *parser.finish()]
    assert first.tool_call is not None
    assert first.tool_call.arguments == {"n": "1", "s": "a b"}

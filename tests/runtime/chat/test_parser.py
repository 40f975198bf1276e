"""Replies taken apart, in whatever pieces they come."""

import json
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.chat.families import source

from ortolan.runtime.chat.call_bodies import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import ReplyParser

SOURCES = {
    "qwen": "<think> </think> <tool_call>",
    "qwen-coder": "<tool_call> <function= <parameter=",
    "glm": "</think> <tool_call> <arg_key>",
    "mistral": "[TOOL_CALLS]",
    "mistral-11": "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    "command": "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>",
    "deepseek": "</think> <｜tool▁call▁begin｜>",
    "lfm": "List of tools: ",
    "olmo": "<function_calls>",
    "phi": "<|tool_call|> <|/tool_call|>",
    "granite": "<|tool_call|>",
    "llama": "dictionary of argument name and its value",
    "llama-python": "params_name1=",
    "gpt-oss": "<|channel|>analysis <|channel|>commentary",
    "kimi": "tool_declare",
    "nemotron": "<think> </think> <TOOLCALL>",
    "apriel": "<tool_call> </tool_calls>",
    "seed": "<seed:tool_call> <function= <parameter= </seed:think>",
    "command-r-plus": "directly-answer",
    "functionary-3.1": "<function=",
    "functionary-3.2": ">>>all",
}
"""What the templates of these families have in them."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
]

ONE = ToolCall(name="f", arguments={"n": 1, "s": "a b"}, id="call00000")
TWO = ToolCall(name="g.h", arguments={}, id="call00001")

CALLS = {
    "qwen": '<tool_call>\n{"name": "f", "arguments": {"n": 1, "s": "a b"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g.h", "arguments": "{}"}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\na b\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call><function=g.h></function></tool_call>",
    "glm": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n"
    "<arg_value>a b</arg_value>\n</tool_call>\n<tool_call>g.h\n</tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]',
    "mistral-11": '[TOOL_CALLS]f[ARGS]{"n": 1, "s": "a b"}[TOOL_CALLS]g.h[ARGS]{}',
    "command": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"n": 1, "s": "a b"}},\n'
    '{"tool_name": "g.h", "parameters": {}}]<|END_ACTION|>',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    '```json\n{"n": 1, "s": "a b"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g.h'
    "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "lfm": '<|tool_call_start|>[f(n=1, s="a b"), g.h()]<|tool_call_end|>',
    "olmo": "<function_calls>\nf(n=1, s='a b')\ng.h()\n</function_calls>",
    "phi": '<|tool_call|>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "<|/tool_call|>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]',
    "llama": '<|python_tag|>{"name": "f", "parameters": {"n": 1, "s": "a b"}}; {"name": "g.h"}',
    "llama-python": "[f(n=1, s='a b'), g.h()]",
    "gpt-oss": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1, '
    '"s": "a b"}<|call|><|start|>assistant to=functions.g.h<|channel|>commentary json<|message|>{}',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"n": 1, "s": "a b"}<|tool_call_end|><|tool_call_begin|>g.h'
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "</TOOLCALL>",
    "apriel": '<tool_calls>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "</tool_calls>",
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n<parameter=s>a b"
    "</parameter>\n</function>\n</seed:tool_call><seed:tool_call><function=g.h>\n</function>"
    "</seed:tool_call>",
    "command-r-plus": 'Action:\n```json\n[\n{"tool_name": "f", "parameters": {"n": 1, "s": "a b"}},'
    '\n{"tool_name": "g.h", "parameters": {}}\n]```',
    "functionary-3.1": '<function=f>{"n": 1, "s": "a b"}</function><function=g.h>{}</function>',
    "functionary-3.2": 'f\n{"n": 1, "s": "a b"}>>>g.h\n{}',
}

Taken = tuple[str, str, tuple[ToolCall, ...]]


def form(family: str, *, with_tools: bool = True) -> Format:
    return format_of(SOURCES[family], with_tools=with_tools)


def taken(pieces: list[str], chosen: Format, **more: Any) -> Taken:
    parser = ReplyParser(chosen, tools=TOOLS, **more)
    found = [piece for text in pieces for piece in parser.feed(text)] + [*parser.finish()]
    assert all(bool(p.content) + bool(p.reasoning) + bool(p.tool_call) == 1 for p in found)
    return (
        "".join(p.content for p in found),
        "".join(p.reasoning for p in found),
        tuple(p.tool_call for p in found if p.tool_call is not None),
    )


@pytest.mark.parametrize("family", SOURCES)
def test_calls_are_read(family: str) -> None:
    content, reasoning, calls = taken([CALLS[family]], form(family))
    assert (content, reasoning) == ("", "")
    ids = {"functions.f:0": ONE.id, "g.h": TWO.id}  # Kimi's say which tool
    assert tuple(replace(call, id=ids.get(call.id, call.id)) for call in calls) == (ONE, TWO)
    assert taken([*CALLS[family]], form(family)) == ("", "", calls)


@pytest.mark.parametrize("family", SOURCES)
def test_a_cut_call_is_text(family: str) -> None:
    text, chosen = CALLS[family], form(family)
    _, _, whole = taken([text], chosen)
    for end in range(len(text)):
        content, reasoning, calls = taken([text[:end]], chosen)
        assert (calls, reasoning) == (whole[: len(calls)], "")
        if not calls:
            assert content == text[:end]


AT_BEGINNING = ("llama-python", "functionary-3.2")


@pytest.mark.parametrize("family", [name for name in SOURCES if name not in AT_BEGINNING])
def test_content_before_calls_loses_the_space_between(family: str) -> None:
    content, reasoning, calls = taken([f"I look it up.\n\n{CALLS[family]}"], form(family))
    assert (content, reasoning) == ("I look it up.", "")
    assert [call.name for call in calls] == ["f", "g.h"]


@pytest.mark.parametrize("family", [name for name in SOURCES if name != "gpt-oss"])
def test_without_tools_calls_are_text(family: str) -> None:
    text = CALLS[family]
    assert taken([text], form(family, with_tools=False)) == (text, "", ())


@pytest.mark.parametrize("family", SOURCES)
@pytest.mark.parametrize(
    "damage", [lambda text: text[:-20], lambda text: text.replace("f", "f (!{")]
)
def test_calls_that_cannot_be_read_stay_text(family: str, damage: Any) -> None:
    text = damage(CALLS[family])
    content, reasoning, calls = taken([text], form(family))
    assert reasoning == ""
    assert "f" in content or "f" in [call.name for call in calls]
    if not calls and family != "gpt-oss":  # whose headers mean nothing
        assert content == text


def test_reasoning_is_apart() -> None:
    text = "<think>\nIt is 2.\n</think>\n\nTwo. "
    assert taken([text], form("qwen")) == ("Two. ", "It is 2.", ())


def test_reasoning_that_the_prompt_began() -> None:
    got = taken(["\nIt is 2.\n</think>\n\nTwo."], form("qwen"), is_reasoning=True)
    assert got == ("Two.", "It is 2.", ())


def test_reasoning_that_never_ends_is_reasoning() -> None:
    assert taken(["<think>It is"], form("qwen")) == ("", "It is", ())


def test_reasoning_before_a_bare_call() -> None:
    chosen = Format(reasoning=form("qwen").reasoning, calls=form("llama").calls)
    assert taken(["<think>a</think>\n", '{"name": "f"}'], chosen)[1:] == (
        "a",
        (ToolCall(name="f", id="call00000"),),
    )


def test_an_object_within_an_answer_is_no_bare_call() -> None:
    text = 'Here: {"name": "f"}'
    assert taken([text], form("llama")) == (text, "", ())


def test_text_without_markers_is_as_it_was() -> None:
    text = "  a\n\n<b> <thin \t\n"
    assert taken([text], form("qwen")) == (text, "", ())


def test_ids_are_those_of_the_model_or_count_on() -> None:
    text = '[TOOL_CALLS][{"name": "f", "id": "abc"}, {"name": "f"}]'
    _, _, calls = taken([text], form("mistral"), calls_before=4)
    assert [call.id for call in calls] == ["abc", "call00005"]


@settings(max_examples=200)
@given(data=st.data())
def test_where_the_pieces_are_cut_changes_nothing(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(SOURCES)))
    chosen = form(family)
    markers = sorted(chosen.markers)
    parts = st.sampled_from(
        [*markers, *markers, " ", "\n", "{", "[", "a", "<", '{"name": "f"}', CALLS[family]]
    )
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    is_reasoning = chosen.reasoning is not None and data.draw(st.booleans())
    whole = taken([text], chosen, is_reasoning=is_reasoning)
    assert taken(pieces, chosen, is_reasoning=is_reasoning) == whole
    assert taken(list(text), chosen, is_reasoning=is_reasoning) == whole


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
def test_a_hostile_body_is_text(family: str, body: str) -> None:
    calls = form(family).calls
    assert calls is not None
    text = f"{calls.open}{body}{calls.close}"
    content, _, found = taken([text], form(family))
    assert (content, found) == (text, ())


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=f><parameter=n>1</parameter>" + "<parameter=a>" * 20_000,
        "<tool_call>" * 20_000,
        '<tool_call><function=f><parameter=a>"' * 4_000,
        ("<tool_call>" + "<function=f><parameter=a>" * 40 + "</tool_call>" * 40) * 40,
        "<tool_call><function=f>" + "</parameter> " * 20_000 + " " * 20_000 + "</tool_call>",
    ],
)
@pytest.mark.parametrize("family", ["qwen", "qwen-coder", "glm"])
def test_what_never_ends_takes_no_time_and_stays_text(family: str, text: str) -> None:
    start = time.process_time()
    assert taken([text], form(family)) == (text, "", ())
    assert time.process_time() - start < 2


def read(family: str, body: str, schema: Any) -> Any:
    """The value of the argument `a` of the only call."""
    calls = form(family).calls
    assert calls is not None
    tools = [{"function": {"name": "f", "parameters": schema}}]
    parser = ReplyParser(form(family), tools=tools)
    pieces = [*parser.feed(f"{calls.open}{body}{calls.close}"), *parser.finish()]
    assert [piece.tool_call is not None for piece in pieces] == [True]
    assert pieces[0].tool_call is not None
    return pieces[0].tool_call.arguments["a"]


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


@pytest.mark.parametrize("family", ["qwen-coder", "seed"])
def test_a_value_that_was_never_closed_takes_no_other_in(family: str) -> None:
    calls = form(family).calls
    assert calls is not None
    body = "<function=f>\n<parameter=n>\n1\n<parameter=s>\na\n</parameter>\n</function>\n"
    text = f"{calls.open}{body}{calls.close}"
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
    assert calls is not None
    value = f"a {calls.close} b {calls.open} c"
    text = CALLS[family].replace("a b", value)
    expected = replace(ONE, arguments={"n": 1, "s": value})
    assert taken([text], form(family)) == ("", "", (expected, TWO))
    assert taken([*text], form(family)) == ("", "", (expected, TWO))


def test_a_string_that_never_ends_takes_no_other_call_in() -> None:
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
def test_no_argument_is_left_out(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert taken([text], form("qwen")) == (text, "", ())


def test_harmony_has_reasoning_a_preamble_an_answer_and_a_call() -> None:
    chosen = form("gpt-oss")
    thought = "<|channel|>analysis<|message|>It rains.<|end|><|start|>assistant"
    said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert taken([f"{thought}<|channel|>final<|message|>Rain."], chosen) == (
        "Rain.",
        "It rains.",
        (),
    )
    call = ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"n": 1}'
    one = ToolCall(name="f", arguments={"n": 1}, id="call00000")
    assert taken([thought + said + call], chosen) == ("I look.", "It rains.", (one,))
    assert taken([call], chosen) == ("", "", (one,))
    assert taken([call[:-1]], chosen) == (call[:-1], "", ())
    assert taken([*(thought + said + call)], chosen) == ("I look.", "It rains.", (one,))


def test_what_the_prompt_began_belongs_to_the_reply() -> None:
    chosen = form("functionary-3.2")
    call = '>>>f\n{"n": 1}'
    assert taken(["all\nHello."], chosen) == ("Hello.", "", ())
    assert [c.name for c in taken([f"all\nHello.\n{call}"], chosen)[2]] == ["f"]
    assert taken(["all\nHello."], form("functionary-3.2", with_tools=False))[0] == "Hello."
    assert taken(["2 >>> 1"], chosen, is_continued=True)[0] == "2 >>> 1"
    assert taken([], chosen) == ("", "", ())


@pytest.mark.parametrize("function", [{"parameters": None}, {"parameters": {"properties": [1]}}])
@pytest.mark.parametrize("family", ["qwen-coder", "glm"])
def test_a_schema_without_properties_leaves_texts(family: str, function: Any) -> None:
    parser = ReplyParser(form(family), tools=[{"function": {"name": "f", **function}}])
    found = [*parser.feed(CALLS[family]), *parser.finish()]
    assert found[0].tool_call is not None
    assert found[0].tool_call.arguments == {"n": "1", "s": "a b"}


def test_arguments_are_json() -> None:
    for text in CALLS.values():
        for family in SOURCES:
            for call in taken([text], form(family))[2]:
                assert json.loads(json.dumps(call.arguments)) == call.arguments


def test_the_format_is_seen_in_the_template() -> None:
    opens = {
        "gpt-oss": "<|channel|>commentary to=functions.", "kimi": "<|tool_call_begin|>",
        "nemotron": "<TOOLCALL>", "seed": "<seed:tool_call>", "qwen2": "<tool_call>",
        "mistral": "[TOOL_CALLS]",
    }  # fmt: skip
    for family, mark in opens.items():
        calls = format_of(source(family), with_tools=True).calls
        assert calls is not None
        assert calls.open == mark


def test_the_most_special_format_of_a_template_counts() -> None:
    assert format_of("<tool_call> <function=", with_tools=True).calls != form("qwen").calls
    assert format_of("{{ messages }}", with_tools=True) == Format()

"""Replies taken apart, in whatever pieces they come."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan.runtime.chat.call_bodies import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import ReplyParser

SOURCES = {
    "qwen": "<think> </think> <tool_call>",
    "qwen-coder": "<tool_call> <function=",
    "glm": "</think> <tool_call> <arg_key>",
    "mistral": "[TOOL_CALLS]",
    "mistral-11": "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    "command": "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>",
    "deepseek": "</think> <｜tool▁call▁begin｜>",
    "lfm": "<|tool_call_start|>",
    "olmo": "<function_calls>",
    "phi": "<|tool_call|> <|/tool_call|>",
    "granite": "<|tool_call|>",
    "llama": "dictionary of argument name and its value",
    "llama-python": "params_name1=",
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
    assert taken([CALLS[family]], form(family)) == ("", "", (ONE, TWO))


@pytest.mark.parametrize("family", [name for name in SOURCES if name != "llama-python"])
def test_content_before_calls_loses_the_space_between(family: str) -> None:
    text = f"I look it up.\n\n{CALLS[family]}"
    assert taken([text], form(family)) == ("I look it up.", "", (ONE, TWO))


@pytest.mark.parametrize("family", SOURCES)
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
    assert "f" in content or ONE in calls
    if not calls:
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
    chosen = Format(form("qwen").reasoning, form("llama").calls)
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


def test_an_unclosed_call_that_can_be_read_is_a_call() -> None:
    text = CALLS["qwen"].removesuffix("</tool_call>")
    assert taken([text], form("qwen")) == ("", "", (ONE, TWO))


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


def test_parameters_that_never_end_take_no_time() -> None:
    body = "<function=f><parameter=n>1</parameter>" + "<parameter=a>" * 20_000
    start = time.process_time()
    _, _, (call,) = taken([f"<tool_call>{body}</tool_call>"], form("qwen-coder"))
    assert time.process_time() - start < 1
    assert call.arguments == {"n": 1}


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


def test_the_most_special_format_of_a_template_counts() -> None:
    assert format_of("<tool_call> <function=", with_tools=True).calls != form("qwen").calls
    assert format_of("{{ messages }}", with_tools=True) == Format()

"""Replies parsed piece by piece; a call is complete, with the types of the schema, or text."""

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.chat.families import source
from tests.runtime.chat.written_calls import CALLS, ONE, SOURCES, TWO, form, taken

from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import ReplyParser, call_id


@pytest.mark.parametrize("family", SOURCES)
def test_calls_are_read(family: str) -> None:
    content, reasoning, calls = taken([CALLS[family]], form(family))
    assert (content, reasoning) == ("", "")
    ids = {"functions.f:0": ONE.id, "g.h": TWO.id}  # Kimi's contain the tool name
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


@pytest.mark.parametrize("family", [name for name in SOURCES if name != "gpt-oss"])
def test_calls_that_cannot_be_read_stay_text(family: str) -> None:
    text = CALLS[family].replace("f", "f (!{")
    content, reasoning, calls = taken([text], form(family))
    assert reasoning == ""
    assert calls or content == text


BARE = Format(reasoning=form("qwen").reasoning, calls=form("llama").calls)
CALL = ToolCall(name="f", id=call_id(b"", 0))


@pytest.mark.parametrize(
    ("pieces", "chosen", "is_reasoning", "expected"),
    [
        (["<think>\nIt is 2.\n</think>\n\nTwo. "], "qwen", False, ("Two. ", "It is 2.", ())),
        (["\nIt is 2.\n</think>\n\nTwo."], "qwen", True, ("Two.", "It is 2.", ())),
        (["<think>It is"], "qwen", False, ("", "It is", ())),
        (["<think>a</think>\n", '{"name": "f"}'], BARE, False, ("", "a", (CALL,))),
        (['Here: {"name": "f"}'], "llama", False, ('Here: {"name": "f"}', "", ())),
        (["  a\n\n<b> <thin \t\n"], "qwen", False, ("  a\n\n<b> <thin \t\n", "", ())),
    ],
)
def test_reasoning_is_separate_and_other_text_unchanged(
    pieces: list[str], chosen: str | Format, is_reasoning: bool, expected: Any
) -> None:
    chosen = form(chosen) if isinstance(chosen, str) else chosen
    assert taken(pieces, chosen, is_reasoning=is_reasoning) == expected


def test_ids_are_those_of_the_model_or_follow_from_the_seed() -> None:
    text = '[TOOL_CALLS][{"name": "f", "id": "abc"}, {"name": "f"}]'
    _, _, calls = taken([text], form("mistral"), seed=b"4")
    assert [call.id for call in calls] == ["abc", call_id(b"4", 1)]
    ids = {call_id(seed, number) for seed in (b"", b"4") for number in range(3)}
    assert len(ids) == 6
    assert all(len(one) == 9 and one.isalnum() for one in ids)


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
    one = ToolCall(name="f", arguments={"n": 1}, id=call_id(b"", 0))
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
    assert taken([*">>> 1"], form("functionary-3.2", with_tools=False))[0] == ">>> 1"
    assert taken(["2 >>> 1"], chosen, is_continued=True)[0] == "2 >>> 1"
    assert taken([], chosen) == ("", "", ())


def test_the_format_is_seen_in_the_template() -> None:
    opens = {
        "gpt-oss": "<|channel|>commentary to=functions.", "kimi": "<|tool_call_begin|>",
        "nemotron": "<TOOLCALL>", "seed": "<seed:tool_call>", "qwen2": "<tool_call>",
        "mistral": "[TOOL_CALLS]",
    }  # fmt: skip
    for family, mark in opens.items():
        calls = format_of(source(family), with_tools=True).calls
        assert calls.open == mark


def test_the_most_special_format_of_a_template_counts() -> None:
    assert format_of("<tool_call> <function=", with_tools=True).calls != form("qwen").calls
    assert format_of("{{ messages }}", with_tools=True) == Format()


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

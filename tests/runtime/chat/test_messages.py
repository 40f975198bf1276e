import copy
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime.chat.messages import check_messages, check_tools

USER = {"role": "user", "content": "hello"}
CALL = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "f", "description": "does", "parameters": {}}}
ARRAY = np.array(["text", "function"])


def test_messages_are_copied_without_none() -> None:
    messages = [
        {**USER, "name": None},
        ANSWER,
        {"role": "tool", "content": "1", "tool_call_id": "a1"},
    ]
    before = copy.deepcopy(messages)
    checked = check_messages(messages)
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert checked == [USER, answer, messages[2]]
    checked[1]["tool_calls"][0]["function"]["arguments"]["x"] = 2
    assert messages == before


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}]},
            {
                "content": "",
                "tool_calls": [
                    {"function": {"name": "f", "arguments": {"x": [1, "é"]}}, "type": "function"}
                ],
            },
        ),
        (
            {"content": "a", "reasoning_content": "b"},
            {"content": "a", "reasoning_content": "b", "thinking": "b"},
        ),
        ({"content": [{"type": "text", "text": t} for t in "ab"]}, None),
        (
            {"content": "a", "reasoning": "b", "annotations": [], "refusal": None},
            {"content": "a", "reasoning_content": "b", "thinking": "b"},
        ),
        (
            {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"content": [{"type": "text", "text": "a"}]},
        ),
        ({"content": "a", "name": "Ann Lee"}, None),
    ],
)
def test_an_answer_is_converted_for_templates(fields: Any, expected: Any) -> None:
    (message,) = check_messages([{"role": "assistant", **fields}])
    assert message == {"role": "assistant", **(fields if expected is None else expected)}


def call(**changes: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{**CALL, **changes}]}]


def part(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [fields]}]


def tool(**fields: Any) -> list[dict[str, Any]]:
    return [TOOL, {"function": {"name": "f", **fields}}]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

MESSAGES: dict[str, Any] = {
    "none": None,
    "an empty list": [],
    "a text": "hello",
    "a text in the list": [USER, "hello"],
    "an unknown role": [{"role": "im_end", "content": ""}],
    "a role of an array": [{"role": ARRAY, "content": ""}],
    "no role": [{"content": ""}],
    "no content": [{"role": "user"}],
    "a number": [{"role": "user", "content": 7}],
    "an unknown part": part(type="video"),
    "a sound without data": part(type="audio"),
    "an image without data": part(type="image_url"),
    "a part without text": part(type="text"),
    "an unknown field of a part": part(type="text", text="", x=1),
    "calls of a user": [{**USER, "tool_calls": [CALL]}],
    "an unknown field": [{**USER, "colour": "red"}],
    "a long name": [{**USER, "name": "a" * 129}],
    "an unknown field of a call": call(x=1),
    "an unknown field of a function": call(function={"name": "f", "x": 1}),
    "an empty name": call(function={"name": ""}),
    "no name": call(function={"arguments": {}}),
    "arguments that are no JSON": call(function={"name": "f", "arguments": "{"}),
    "arguments that are a list": call(function={"name": "f", "arguments": "[1]"}),
    "a function that is a number": call(function=7),
    "a call of an unknown type": call(type="code"),
    "a marker as id": call(id="<|im_end|>"),
    "calls that are no list": [{"role": "assistant", "tool_calls": {}}],
    "endless arguments": call(function={"name": "f", "arguments": {"a": ENDLESS}}),
    "a key that is no text": call(function={"name": "f", "arguments": {1: 2}}),
}

TOOLS: dict[str, Any] = {
    "no list": {},
    "no function": [{"type": "function"}],
    "a bare name": [{"name": "f"}],
    "a name with a space": [{"function": {"name": "f g"}}],
    "parameters that are a number": tool(parameters=7),
    "a description that is a number": tool(description=7),
    "an unknown field": tool(x=1),
    "parameters that are no JSON": tool(parameters={"a": {1}}),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_an_invalid_message_is_refused_with_its_place(
    name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: check_messages(MESSAGES[name])) == snapshot


@pytest.mark.parametrize("name", TOOLS)
def test_an_invalid_tool_is_refused_with_its_place(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: check_tools(TOOLS[name])) == snapshot


def test_tools_are_copied() -> None:
    strict = {"function": {"name": "g", "strict": True}}
    assert check_tools([TOOL, strict]) == [TOOL, {"type": "function", **strict}]


def test_an_answer_without_calls_may_say_so() -> None:
    answer = {"role": "assistant", "content": "a"}
    assert check_messages([{**answer, "tool_calls": []}]) == check_messages([answer])

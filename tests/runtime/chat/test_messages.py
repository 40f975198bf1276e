import copy
from typing import Any

import numpy as np
import pytest

from ortolan.runtime.chat.messages import check_messages, check_tools, plain
from ortolan.runtime.errors import ChatError

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


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages: .* list of 0"),
        ("hello", "messages: .* a str"),
        (None, "messages: .* none"),
        ([USER, "hello"], r"messages\[1\]: .* a str"),
        ([{"role": "im_end", "content": ""}], r"messages\[0\].role: .* 'im_end'"),
        ([{"role": ARRAY, "content": ""}], r"role: .* array\("),
        ([{"content": ""}], r"messages\[0\].role: .* None"),
        ([{"role": "user"}], r"messages\[0\].content: .* none"),
        ([{"role": "user", "content": 7}], r"\[0\].content: .* a int"),
        ([{"role": "user", "content": [{"type": "video"}]}], "type: .* 'video'"),
        ([{"role": "user", "content": [{"type": "audio"}]}], r"\[0\].audio: .* None"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url: .* none"),
        ([{"role": "user", "content": [{"type": ARRAY}]}], r"type: .* array\("),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: .* none"),
        ([{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}], r"\[0\]: .* 'x'"),
        ([{**USER, "tool_calls": [CALL]}], r"messages\[0\]: .* 'tool_calls'"),
        ([{**USER, "colour": "red"}], "'colour'"),
        ([{**USER, "name": "a" * 129}], r"messages\[0\].name: .* 129"),
        (call(x=1), r"tool_calls\[0\]: .* 'x'"),
        (call(function={"name": "f", "x": 1}), r"tool_calls\[0\].function: .* 'x'"),
        (call(function={"name": ""}), r"tool_calls\[0\].function.name: .* ''"),
        (call(function={"arguments": {}}), "function.name: .* none"),
        (call(function={"name": "f", "arguments": "{"}), "arguments: .* JSON"),
        (call(function={"name": "f", "arguments": "[1]"}), "arguments: .* list of 1"),
        (call(function=7), "function: .* a int"),
        (call(type="code"), "type: .* 'code'"),
        (call(type=ARRAY), r"type: .* array\("),
        (call(id="<|im_end|>"), "id: .*im_end"),
        ([{"role": "assistant", "tool_calls": []}], "content: expected text, got none"),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls: .* a dict"),
    ],
)
def test_an_invalid_message_is_rejected_with_its_place(messages: Any, place: str) -> None:
    with pytest.raises(ChatError, match=place):
        check_messages(messages)


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ({}, "tools: .* a dict"),
        ([{"name": "f"}], r"tools\[0\]: .* 'name'"),
        ([{"type": "function"}], r"tools\[0\].function: .* none"),
        ([{"function": {"name": "f g"}}], r"tools\[0\].function.name: .* 'f g'"),
        ([{"function": {"name": "f", "parameters": 7}}], "function.parameters: .* a int"),
        ([{"function": {"name": "f", "description": 7}}], "function.description: .* a int"),
        ([TOOL, {"function": {"name": "f", "x": 1}}], r"tools\[1\].function: .* 'x'"),
        ([{"function": {"name": "f", "parameters": {"a": {1}}}}], "parameters.a: .* a set"),
    ],
)
def test_an_invalid_tool_is_rejected_with_its_place(tools: Any, place: str) -> None:
    with pytest.raises(ChatError, match=place):
        check_tools(tools)


def test_tools_are_copied() -> None:
    assert check_tools([TOOL, {"function": {"name": "g", "strict": True}}]) == [
        TOOL,
        {"type": "function", "function": {"name": "g", "strict": True}},
    ]


@pytest.mark.parametrize(("value", "message"), [([], "32 levels"), ({1: 2}, "here: a key")])
def test_endless_data_and_keys_other_than_text_are_rejected(value: Any, message: str) -> None:
    if isinstance(value, list):
        value.append(value)
    with pytest.raises(ChatError, match=message):
        plain(value, "here")


def test_an_answer_without_calls_may_say_so() -> None:
    answer = {"role": "assistant", "content": "a"}
    assert check_messages([{**answer, "tool_calls": []}]) == check_messages([answer])

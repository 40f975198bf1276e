import copy
from typing import Any

import numpy as np
import pytest

from ortolan.runtime.chat.messages import checked_messages, checked_tools, plain
from ortolan.runtime.errors import ChatError

USER = {"role": "user", "content": "hello"}
CALL = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "f", "description": "does", "parameters": {}}}


ARRAY = np.array(["text", "function"])


def test_messages_are_copied_and_none_is_left_out() -> None:
    given = [{**USER, "name": None}, ANSWER, {"role": "tool", "content": "1", "tool_call_id": "a1"}]
    before = copy.deepcopy(given)
    found = checked_messages(given)
    assert found == [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, given[2]]
    found[1]["tool_calls"][0]["function"]["arguments"]["x"] = 2
    assert given == before


def test_arguments_as_json_become_objects() -> None:
    call = {"function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}
    (found,) = checked_messages([{"role": "assistant", "tool_calls": [call]}])
    assert found["tool_calls"][0]["function"]["arguments"] == {"x": [1, "é"]}


def test_reasoning_goes_by_both_of_its_names() -> None:
    (found,) = checked_messages([{"role": "assistant", "content": "a", "reasoning_content": "b"}])
    assert (found["reasoning_content"], found["thinking"]) == ("b", "b")


def test_parts_stay_parts() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert checked_messages([{"role": "user", "content": content}])[0]["content"] == content


def calls(**changes: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{**CALL, **changes}]}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: expected a list of 1 to 16384, got 0"),
        ("hello", "messages: expected a list of 1 to 16384, got a str"),
        (None, "messages: expected a list of 1 to 16384, got none"),
        ([USER, "hello"], r"messages\[1\]: expected an object, got a str"),
        (
            [{"role": "im_end", "content": ""}],
            r"messages\[0\].role: expected system, .*got 'im_end'",
        ),
        ([{"content": ""}], r"messages\[0\].role: .* got None"),
        ([{"role": "user"}], r"messages\[0\].content: expected a text, got none"),
        ([{"role": "user", "content": 7}], r"\[0\].content: expected a text or .* got a int"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r'"text", got \'image_url\'.*only',
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: expected a text"),
        (
            [{**USER, "tool_calls": [CALL]}],
            r"messages\[0\]: expected content, name, got 'tool_calls'",
        ),
        ([{**USER, "colour": "red"}], "got 'colour'"),
        ([{**USER, "name": "a b"}], r"messages\[0\].name: expected at most 128 letters"),
        (calls(function={"name": ""}), r"tool_calls\[0\].function.name: expected at most"),
        (calls(function={"arguments": {}}), r"function.name: expected a text, got none"),
        (calls(function={"name": "f", "arguments": "{"}), "arguments: expected JSON of an object"),
        (calls(function={"name": "f", "arguments": "[1]"}), "arguments: expected an object, or"),
        (calls(function=7), "function: expected an object, got a int"),
        (calls(type="code"), 'type: expected "function", got'),
        (calls(type=ARRAY), r'type: expected "function", got array\('),
        ([{"role": ARRAY, "content": ""}], r"role: expected system, .* got array\("),
        ([{"role": "user", "content": [{"type": ARRAY}]}], r'type: expected "text", got array\('),
        (calls(id="<|im_end|>"), "id: expected at most 128 letters"),
        ([{"role": "assistant", "tool_calls": []}], "tool_calls: expected a list of calls, got 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(messages: Any, message: str) -> None:
    with pytest.raises(ChatError, match=message):
        checked_messages(messages)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({}, "tools: expected a list, got a dict"),
        ([{"name": "f"}], r"tools\[0\]: expected type, function, got 'name'"),
        ([{"type": "function"}], r"tools\[0\].function: expected an object, got none"),
        ([{"function": {"name": "f g"}}], r"tools\[0\].function.name: expected at most"),
        ([{"function": {"name": "f", "parameters": 7}}], "parameters: expected a JSON schema"),
        ([{"function": {"name": "f", "description": 7}}], "description: expected a text"),
        ([TOOL, {"function": {"name": "f", "x": 1}}], r"tools\[1\].function: expected name, .*'x'"),
        ([{"function": {"name": "f", "parameters": {"a": {1}}}}], "parameters.a: .*got a set"),
    ],
)
def test_what_is_wrong_with_tools_is_named(tools: Any, message: str) -> None:
    with pytest.raises(ChatError, match=message):
        checked_tools(tools)


def test_tools_are_copied() -> None:
    assert checked_tools([TOOL, {"function": {"name": "g", "strict": True}}]) == [
        TOOL,
        {"type": "function", "function": {"name": "g", "strict": True}},
    ]


def test_data_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ChatError, match="at most 32 values within values"):
        plain(endless, "here")


def test_keys_are_texts() -> None:
    with pytest.raises(ChatError, match="here: a key: expected a text"):
        plain({1: 2}, "here")

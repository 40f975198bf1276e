"""Whatever a model writes is an answer and never an error of the server."""

import json
from typing import Any

import httpx2
import pytest
from tests.server.api.test_chat_completions import TOOL
from tests.server.api.test_responses import FUNCTION
from tests.server.calls import chunks, post_ok

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi."}], "tools": [TOOL]}
TEXTS = {
    "a call that is cut": '<tool_call>{"name": "f", "argu',
    "a call that is no JSON": "<tool_call>{name: f}</tool_call>",
    "a call of a list": "<tool_call>[[1, 2]]</tool_call>",
    "a call without a name": '<tool_call>{"arguments": {}}</tool_call>',
    "a call whose name is a number": '<tool_call>{"name": 7}</tool_call>',
    "a call in a call": "<tool_call><tool_call></tool_call>",
    "a call of nested lists": "<tool_call>" + "[" * 90 + "</tool_call>",
    "an end without a call": "x</tool_call>y",
    "reasoning that does not end": "<think>x",
    "an end without reasoning": "x</think>y",
    "nothing": "",
}


@pytest.fixture(params=[*TEXTS.values()], ids=[*TEXTS])
def written(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A schema that forces the text, as a JSON string."""
    return {"const": request.param}


def test_chat_completions_keep_the_text(client: httpx2.Client, written: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "text", "schema": written}}
    body = {**CHAT, "response_format": form, "max_tokens": 240}
    (choice,) = post_ok(client, "/v1/chat/completions", body)["choices"]
    assert choice["finish_reason"] == "stop"
    message = choice["message"]
    assert "tool_calls" not in message
    if "think" not in written["const"]:
        assert json.loads(message["content"]) == written["const"]
    events = chunks(client, "/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events]
    for field in ("content", "reasoning_content"):
        assert "".join(d.get(field, "") for d in deltas) == message.get(field, "")


def test_responses_keep_the_text(client: httpx2.Client, written: dict[str, Any]) -> None:
    form = {"type": "json_schema", "name": "text", "schema": written}
    body: dict[str, Any] = {"input": "Hi.", "tools": [FUNCTION], "text": {"format": form}}
    body |= {"max_output_tokens": 240}
    answer = post_ok(client, "/v1/responses", body)
    assert answer["status"] == "completed"
    text = "".join(item["content"][0]["text"] for item in answer["output"])
    if "think" not in written["const"]:
        assert json.loads(text) == written["const"]
    assert "message" in [item["type"] for item in answer["output"]]
    events = chunks(client, "/v1/responses", body)
    assert "".join(event["delta"] for event in events if "delta" in event) == text
    assert events[-1]["type"] == "response.completed"

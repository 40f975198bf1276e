"""Responses: items, events and settings after the Open Responses specification."""

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runtime.serving.faults import failing
from tests.server.api.test_chat_completions import TOOL
from tests.server.calls import chunks, post_ok, refusal
from tests.server.live import serving_fp32

from ortolan.runtime import Decoder, Grammar, Sampling, Service

PATH = "/v1/responses"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_output_tokens": 24}
SAMPLED |= {"ignore_eos": True}
FUNCTION: dict[str, Any] = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
INCLUDE: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def ask(client: httpx2.Client, **body: Any) -> Any:
    return post_ok(client, PATH, {"input": "Hi.", **body})


def stream(client: httpx2.Client, **body: Any) -> list[Any]:
    events = chunks(client, PATH, {"input": "Hi.", **body})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(value: Any) -> Any:
    """A response without what differs each time, and without the number of cached tokens."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    drop = ("id", "created_at", "completed_at", "cached_tokens")
    return {key: without_ids(item) for key, item in value.items() if key not in drop}


def test_the_answer_is_that_of_the_model(client: httpx2.Client, models: dict[str, Decoder]) -> None:
    answer = ask(client, input=[{"role": "user", "content": "Hi."}], instructions="Be.", **SAMPLED)
    expected = models["fp32"].chat(
        [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi."}],
        max_new_tokens=24,
        ignore_eos=True,
        sampling=Sampling(temperature=0.8, seed=7),
    )
    (item,) = answer["output"]
    assert item["content"][0]["text"] == expected.content
    assert item["status"] == answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    usage = answer["usage"]
    assert usage["input_tokens"] == expected.completion.timings.prompt_tokens
    assert usage["output_tokens"] == 24
    assert usage["total_tokens"] == usage["input_tokens"] + 24


@pytest.mark.parametrize("more", [{}, INCLUDE])
def test_events_come_in_order_and_join_to_the_response(
    client: httpx2.Client, more: dict[str, Any]
) -> None:
    whole = ask(client, **SAMPLED, **more)
    events = stream(client, **SAMPLED, **more)
    response = events[-1]["response"]
    assert without_ids(response) == without_ids(whole)
    (item,) = response["output"]
    texts = [event["delta"] for event in events if "delta" in event]
    assert len(texts) > 3
    assert {event["content_index"] for event in events if "content_index" in event} == {0}
    assert "".join(texts) == events[-4]["text"] == item["content"][0]["text"]
    assert {e["item_id"] for e in events if "item_id" in e} == {item["id"]}
    assert {e["response"]["id"] for e in events if "response" in e} == {response["id"]}
    assert events[2]["item"]["content"] == []
    assert events[3]["part"]["text"] == ""
    logprobs = [entry for event in events if "delta" in event for entry in event["logprobs"]]
    assert logprobs == item["content"][0]["logprobs"]
    assert bool(logprobs) == bool(more)


def test_a_forced_call_and_its_events(client: httpx2.Client) -> None:
    body: dict[str, Any] = {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}
    body |= {"seed": 4, "temperature": 1.0}
    answer = ask(client, **body)
    (item,) = answer["output"]
    assert item["type"] == "function_call"
    assert isinstance(json.loads(item["arguments"])["x"], int)
    assert answer["tools"] == [{**FUNCTION, "description": None, "strict": None}]
    assert answer["tool_choice"] == body["tool_choice"]
    events = stream(client, **body)
    assert events[2]["item"]["call_id"] != item["call_id"]
    start = {**item, "arguments": "", "status": "in_progress"}
    assert events[2]["item"] | {"id": 0, "call_id": ""} == start | {"id": 0, "call_id": ""}
    assert events[3]["delta"] == events[4]["arguments"] == item["arguments"]


@pytest.mark.parametrize("choice", ["required", {"type": "allowed_tools", "mode": "required"}])
def test_a_single_call_of_an_allowed_tool(client: httpx2.Client, choice: Any) -> None:
    other = {**FUNCTION, "name": "other"}
    if isinstance(choice, dict):
        choice = {**choice, "tools": [{"type": "function", "name": "other"}]}
    body = {"tools": [FUNCTION, other], "tool_choice": choice, "parallel_tool_calls": False}
    answer = ask(client, **body, temperature=1.0, seed=2, ignore_eos=True)
    (item,) = answer["output"]
    assert item["name"] == "other" or choice == "required"
    assert answer["status"] == "completed"
    assert answer["parallel_tool_calls"] is False


def test_items_become_messages(client: httpx2.Client, models: dict[str, Decoder]) -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
            {"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "phase": "commentary",
         "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "status": "completed",
         "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"role": "developer", "content": "go"},
    ]  # fmt: skip
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "2"},
        {"role": "developer", "content": "go"},
    ]
    answer = ask(client, input=items, **SAMPLED)
    expected = models["fp32"].chat(
        messages, max_new_tokens=24, ignore_eos=True, sampling=Sampling(temperature=0.8, seed=7)
    )
    assert answer["output"][0]["content"][0]["text"] == expected.content
    prompt = expected.completion.timings.prompt_tokens
    assert answer["usage"]["input_tokens"] == prompt


def test_settings_are_echoed(client: httpx2.Client) -> None:
    schema = {**FUNCTION["parameters"]}
    settings: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "max_output_tokens": 200,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "instructions": "Be.",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {"type": "json_schema", "name": "p", "schema": schema, "strict": True}},
    }
    answer = ask(client, **settings, seed=1, store=False, background=False)
    assert {name: answer[name] for name in settings} == settings
    assert isinstance(json.loads(answer["output"][0]["content"][0]["text"])["x"], int)
    assert answer["status"] == "completed"
    assert answer["completed_at"] >= answer["created_at"]
    defaults = ask(client, max_output_tokens=1)
    assert defaults["temperature"] == 0  # what was used: the model recommends nothing
    assert (defaults["tool_choice"], defaults["tools"], defaults["store"]) == ("auto", [], False)
    assert defaults["text"] == {"format": {"type": "text"}}


def test_a_stored_response_continues(client: httpx2.Client) -> None:
    first = ask(client, store=True, **SAMPLED)
    assert client.get(f"{PATH}/{first['id']}").json() == first
    chained = ask(client, input="More.", previous_response_id=first["id"], **SAMPLED)
    greeting, more = ({"role": "user", "content": text} for text in ("Hi.", "More."))
    again = ask(client, input=[greeting, *first["output"], more], **SAMPLED)
    assert without_ids(chained["output"]) == without_ids(again["output"])
    assert chained["previous_response_id"] == first["id"]
    items = client.get(f"{PATH}/{first['id']}/input_items").json()
    (item,) = items["data"]
    assert item["id"] == items["first_id"] == items["last_id"]
    assert (item["type"], item["role"]) == ("message", "user")
    assert item["content"] == [{"type": "input_text", "text": "Hi."}]
    assert client.delete(f"{PATH}/{first['id']}").json()["deleted"] is True
    assert client.get(f"{PATH}/{first['id']}").status_code == 404
    assert client.get(f"{PATH}/{first['id']}/input_items").status_code == 404
    error = refusal(client, PATH, {"input": "Hi.", "previous_response_id": first["id"]})
    assert error["code"] == "previous_response_not_found"


def test_responses_are_not_stored_unless_asked(client: httpx2.Client) -> None:
    answer = ask(client, **SAMPLED)
    assert answer["store"] is False
    assert client.get(f"{PATH}/{answer['id']}").status_code == 404


@pytest.mark.parametrize(
    ("settings", "kept"), [({"max_stored_responses": 2}, "ac"), ({"max_stored_bytes": 9}, "")]
)
def test_the_responses_that_were_used_last_are_kept(
    bundles: dict[str, Path], settings: dict[str, int], kept: str
) -> None:
    with serving_fp32(bundles, **settings) as server, server.client() as client:
        ids = [ask(client, input=text, store=True, max_output_tokens=1)["id"] for text in "ab"]
        client.get(f"{PATH}/{ids[0]}")
        ids.append(ask(client, input="c", store=True, max_output_tokens=1)["id"])
        statuses = [client.get(f"{PATH}/{one}").status_code for one in ids]
    assert statuses == [200 if name in kept else 404 for name in "abc"]


def test_a_reply_of_several_parts_becomes_items(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    written = Grammar.regex(re.escape(f"<think>hm</think>so call{call}{call}end"))
    chat = Service.chat

    def forced(self: Service, messages: Any, **options: Any) -> Any:
        return chat(self, messages, **{**options, "grammar": written})

    monkeypatch.setattr(Service, "chat", forced)
    events = stream(client, tools=[FUNCTION], max_output_tokens=300)
    names = [event["type"].removeprefix("response.") for event in events]
    part = ["output_item.added", "content_part.added", "DELTA"]
    end = ["content_part.done", "output_item.done"]
    called = ["output_item.added", "function_call_arguments.delta"]
    called += ["function_call_arguments.done", "output_item.done"]
    once = [re.sub("^(reasoning|output_text).delta", "DELTA", name) for name, _ in groupby(names)]
    assert once == [
        *("created", "in_progress", *part, "reasoning.done", *end),
        *(*part, "output_text.done", *end, *called, *called),
        *(*part, "output_text.done", *end, "completed"),
    ]
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == [
        *("reasoning", "message", "function_call", "function_call", "message")
    ]
    assert {item["status"] for item in response["output"]} == {"completed"}
    added = [e["output_index"] for e in events if e["type"].endswith("output_item.added")]
    assert added == [*range(5)]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] >= len("hm")


def test_a_stream_that_fails_says_so(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(lambda call: True):
        *_, error, last = stream(client, **SAMPLED)
    assert error["type"] == "error"
    assert error["error"]["code"] == last["response"]["error"]["code"] == "compute"
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")

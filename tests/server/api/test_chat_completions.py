"""Chat completions: the same answers as in this process, in OpenAI's form."""

import json
import re
from typing import Any

import httpx2
import pytest
from tests.server.calls import chunks, post_ok

from ortolan.runtime import Decoder, Sampling

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi. " * 9}]
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 24, "ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}


NOW = {"type": "function", "function": {"name": "now"}}
USER = {"role": "user", "content": "What is the best book"}


def ask(client: httpx2.Client, **body: Any) -> Any:
    return post_ok(client, PATH, {"messages": MESSAGES, **body})


def content(client: httpx2.Client, **body: Any) -> str:
    text: str = ask(client, **body)["choices"][0]["message"]["content"]
    return text


def stream(client: httpx2.Client, **body: Any) -> list[Any]:
    return chunks(client, PATH, {"messages": MESSAGES, **body})


@pytest.mark.parametrize("name", ["fp32", "int4"])
def test_answers_equal_those_of_the_model(
    client: httpx2.Client, models: dict[str, Decoder], name: str
) -> None:
    answer = ask(client, model=name, **SAMPLED, n=2, logprobs=True, top_logprobs=3)
    expected = models[name].chat(
        MESSAGES,
        n=2,
        max_new_tokens=24,
        ignore_eos=True,
        sampling=Sampling(temperature=0.8, seed=7),
        logprobs=3,
    )
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        reply.content for reply in expected
    ]
    for choice, reply in zip(answer["choices"], expected, strict=True):
        logprobs = reply.completion.logprobs
        assert logprobs is not None
        entries = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in entries] == [entry.logprob for entry in logprobs]
        assert [len(entry["top_logprobs"]) for entry in entries] == [3] * 24
        data = b"".join(bytes(entry["bytes"]) for entry in entries)
        text = data.decode(errors="replace").replace("<eos>", "")
        assert text == choice["message"]["content"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert {choice["message"]["role"] for choice in answer["choices"]} == {"assistant"}
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    usage = answer["usage"]
    assert usage["completion_tokens"] == 48
    assert usage["prompt_tokens"] == expected[0].completion.timings.prompt_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + 48
    assert answer["model"] == name
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"].startswith("fp_")


def test_answers_are_greedy_unless_choices_must_differ(
    client: httpx2.Client, models: dict[str, Decoder]
) -> None:
    limits = {"max_tokens": 12, "ignore_eos": True}
    expected = models["fp32"].chat(MESSAGES, max_new_tokens=12, ignore_eos=True)
    assert content(client, **limits) == expected.content
    choices = ask(client, **limits, n=3)["choices"]
    assert len({choice["message"]["content"] for choice in choices}) > 1


def shown(choice: Any) -> tuple[Any, ...]:
    """Text, calls without ids, reason of the end and log-probabilities."""
    calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
    logprobs = (choice["logprobs"] or {}).get("content", [])
    return choice["message"]["content"] or "", calls, choice["finish_reason"], logprobs


def joined(events: list[Any], index: int) -> tuple[Any, ...]:
    """The same of a streamed choice."""
    choices = [c for event in events for c in event["choices"] if c["index"] == index]
    first, *others = [choice["delta"] for choice in choices]
    assert first == {"role": "assistant", "content": ""}
    assert all("role" not in delta and None not in delta.values() for delta in others)
    calls: list[dict[str, str]] = []
    for part in [part for delta in others for part in delta.get("tool_calls", ())]:
        if "id" in part:
            calls.append({"name": part["function"]["name"], "arguments": ""})
        assert part["index"] == len(calls) - 1
        calls[-1]["arguments"] += part["function"].get("arguments", "")
    *reasons, reason = [choice["finish_reason"] for choice in choices]
    assert (set(reasons), others[-1]) == ({None}, {})
    found = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
    logprobs = [entry for entries in found for entry in entries]
    return "".join(delta.get("content", "") for delta in others), calls, reason, logprobs


FORCED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
SINGLE = {**FORCED, "temperature": 1.0, "seed": 1, "ignore_eos": True, "logprobs": True}

STREAMED: dict[str, dict[str, Any]] = {
    "several choices": {**SAMPLED, "n": 3},
    "log-probabilities to the end": {**SAMPLED, "n": 2, "logprobs": True, "top_logprobs": 2}
    | {"ignore_eos": False, "min_tokens": 12, "logit_bias": {"96": 100}},
    "a call": {**FORCED, "temperature": 0.8, "seed": 7},
    "a single call": {**SINGLE, "parallel_tool_calls": False},
}


@pytest.mark.parametrize("name", STREAMED)
def test_streamed_pieces_join_to_the_answer(client: httpx2.Client, name: str) -> None:
    whole = ask(client, **STREAMED[name])
    *events, last = stream(client, **STREAMED[name], stream_options={"include_usage": True})
    for index, choice in enumerate(whole["choices"]):
        assert joined(events, index) == shown(choice)
    usage = {**whole["usage"], "prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    assert last["choices"] == []
    assert last["usage"] == usage  # the second request may find its prompt in the cache
    assert len({event["id"] for event in events}) == 1
    assert {event["usage"] for event in events} == {None}


def test_calls_are_forced_and_a_single_one_ends_the_answer(client: httpx2.Client) -> None:
    (choice,) = ask(client, **SINGLE)["choices"]
    several = choice["message"]["tool_calls"]
    assert len(several) > 1  # the model cannot end, so it calls again and again
    assert several[0]["function"]["name"] == "f"
    assert isinstance(json.loads(several[0]["function"]["arguments"])["x"], int)
    answer = ask(client, **SINGLE, parallel_tool_calls=False)
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == several[0]["function"]
    assert call["id"] != several[0]["id"]
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"] < 200
    assert choice["finish_reason"] == "tool_calls"


ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
}


def test_only_allowed_tools_are_called(client: httpx2.Client) -> None:
    other = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
    for seed in range(3):
        body = {"tools": [other, TOOL], "tool_choice": ALLOWED, "max_tokens": 100}
        (choice,) = ask(client, **body, temperature=1.0, seed=seed)["choices"]
        assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"f"}


@pytest.mark.parametrize(
    "body",
    [
        {"seed": -1},
        {"top_k": -1},
        {"verbosity": "low", "modalities": ["text"], "add_generation_prompt": True},
        {"use_beam_search": False, "length_penalty": 1.0, "include_stop_str_in_output": False},
        {"priority": 0, "request_id": "a", "add_special_tokens": False},
        {"stop": [f"s{n}" for n in range(17)]},
        {"guided_json": None, "functions": None, "chat_template": None, "lora_path": None},
        {"repeat_penalty": 1.0, "typical_p": 1, "mirostat": 0, "grammar": "", "bad_words": []},
        {"structured_outputs": {"regex": "a+", "grammar": None, "disable_fallback": False}},
        {"no_stop_trim": False, "skip_special_tokens": True, "return_hidden_states": False},
        {"include_reasoning": True, "separate_reasoning": True, "stream_reasoning": True},
        {"continue_final_message": False, "ignore_eos": False, "tool_choice": "none"},
        {"tools": [NOW], "tool_choice": None},
        {"tool_choice": None},
        {"seed": 1.0, "n": 1.0, "top_k": 5.0, "stop_token_ids": [1.0]},
    ],
)
def test_defaults_of_other_servers_are_accepted(
    client: httpx2.Client, body: dict[str, Any]
) -> None:
    assert ask(client, **body, max_tokens=2)["choices"]


def test_a_limit_beyond_the_context_ends_with_the_context(client: httpx2.Client) -> None:
    context = client.get("/v1/models").json()["data"][0]["context_length"]
    for limit in (-1, 10**6, context):
        answer = ask(client, max_tokens=limit, ignore_eos=True, temperature=0)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == context


def named(schema: Any) -> dict[str, Any]:
    """A response format."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": form}


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"structured_outputs": {"regex": "yes|no"}}, "yes|no"),
        ({"structured_outputs": {"choice": ["a.b", "c"]}}, r"a\.b|c"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
        (named({"const": "foo"}), '"foo"'),
        (named({"enum": [7]}), "7"),
        (named(TOOL["function"]["parameters"]), r'\s*\{\s*"x"\s*:\s*-?\d+\s*\}\s*'),  # type: ignore[index]
        ({"response_format": {"type": "json_object"}, "max_tokens": 8}, r"\s*(\{.*)?"),
        ({"response_format": {"type": "text"}}, ".*"),
    ],
)
def test_formats_form_the_answer(client: httpx2.Client, body: dict[str, Any], pattern: str) -> None:
    text = content(client, **{"temperature": 1, "seed": 3, "max_tokens": 200, **body})
    assert re.fullmatch(pattern, text, re.DOTALL)


def test_every_event_has_the_usage_so_far(client: httpx2.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(client, max_tokens=6, ignore_eos=True, stream_options=options)
    usages = [event["usage"] for event in events]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}


def test_a_prefilled_answer_is_continued(client: httpx2.Client) -> None:
    def answered(start: Any, **options: Any) -> Any:
        messages = [USER, {"role": "assistant", "content": start}]
        answer = ask(client, messages=messages, seed=1, max_tokens=8, **options)
        return answer["choices"], answer["usage"]["prompt_tokens"]

    parts = [{"type": "text", "text": "Per"}, {"type": "text", "text": "haps"}]
    continued = answered("Perhaps", continue_final_message=True)
    assert answered(parts, continue_final_message=True) == continued
    assert answered("Perhaps")[1] > continued[1]


def test_a_stop_token_ends_the_answer(client: httpx2.Client) -> None:
    options = {"temperature": 0, "max_tokens": 8}
    whole = ask(client, **options, ignore_eos=True)
    text = whole["choices"][0]["message"]["content"]
    tokens = post_ok(client, "/tokenize", {"prompt": text})["tokens"]
    cut = ask(client, **options, stop_token_ids=tokens)
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]

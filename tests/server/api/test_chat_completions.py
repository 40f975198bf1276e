"""Chat completions: the same answers as in this process, in OpenAI's form."""

import json
import re
from typing import Any

import httpx2
import pytest
from tests.server.events import post_stream

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


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post(PATH, json={"model": "fp32", "messages": MESSAGES, **body})
    assert response.status_code == 200, response.text
    return response.json()


def reject(client: httpx2.Client, status: int = 400, **body: Any) -> Any:
    response = client.post(PATH, json={"model": "fp32", "messages": MESSAGES, **body})
    assert response.status_code == status, response.text
    return response.json()["error"]


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
        content = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in content] == [entry.logprob for entry in logprobs]
        assert [len(entry["top_logprobs"]) for entry in content] == [3] * 24
    assert answer["usage"]["completion_tokens"] == 48
    assert answer["usage"]["prompt_tokens"] == expected[0].completion.timings.prompt_tokens
    assert answer["model"] == name


def test_answers_are_greedy_unless_choices_must_differ(
    client: httpx2.Client, models: dict[str, Decoder]
) -> None:
    limits = {"max_tokens": 12, "ignore_eos": True}
    (choice,) = ask(client, **limits)["choices"]
    expected = models["fp32"].chat(MESSAGES, max_new_tokens=12, ignore_eos=True)
    assert choice["message"]["content"] == expected.content
    choices = ask(client, **limits, n=3)["choices"]
    assert len({choice["message"]["content"] for choice in choices}) > 1


def test_streamed_pieces_join_to_the_answer(client: httpx2.Client) -> None:
    whole = ask(client, **SAMPLED, n=3)
    events = post_stream(
        client,
        PATH,
        {
            "model": "fp32",
            "messages": MESSAGES,
            **SAMPLED,
            "n": 3,
            "stream_options": {"include_usage": True},
        },
    )
    assert events[-1] == "[DONE]"
    *chunks, last = events[:-1]
    assert last["choices"] == []
    usage = {**whole["usage"], "prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    assert last["usage"] == usage  # the second request may find its prompt in the cache
    assert len({chunk["id"] for chunk in chunks}) == 1
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]


def test_streamed_logprobs_come_with_their_pieces(client: httpx2.Client) -> None:
    body = {**SAMPLED, "n": 2, "logprobs": True, "top_logprobs": 2}
    body |= {"ignore_eos": False, "min_tokens": 12, "logit_bias": {"96": 100}}  # EOS at the end
    whole = ask(client, **body)
    events = post_stream(client, PATH, {"model": "fp32", "messages": MESSAGES, **body})
    for index in range(2):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
        parts = [choice["logprobs"]["content"] for choice in mine if choice["logprobs"]]
        assert len(parts) > 10
        expected = whole["choices"][index]["logprobs"]["content"]
        assert [entry for part in parts for entry in part] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_single_call_ends_the_answer(client: httpx2.Client, stream: bool) -> None:
    body = {
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 300,
        "ignore_eos": True,
    }
    body |= {"temperature": 1.0, "seed": 1, "logprobs": True}
    several = ask(client, **body)["choices"][0]["message"]["tool_calls"]
    assert len(several) > 1  # the model cannot end, so it calls again and again
    body["parallel_tool_calls"] = False
    if not stream:
        answer = ask(client, **body)
        (choice,) = answer["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == several[0]["function"]
        assert call["id"] not in {call["id"] for call in several}
        assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"] < 300
        assert choice["finish_reason"] == "tool_calls"
        return
    events = post_stream(client, PATH, {"model": "fp32", "messages": MESSAGES, **body})
    choices = [event["choices"][0] for event in events[:-1]]
    calls = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    assert {part["index"] for part in calls} == {0}
    assert "".join(p["function"]["arguments"] for p in calls) == several[0]["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_forced_tool_call(client: httpx2.Client) -> None:
    body = {"tools": [TOOL], "tool_choice": "required", **SAMPLED, "ignore_eos": False}
    body["max_tokens"] = 200
    (choice,) = ask(client, **body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert call["function"]["name"] == "f"
    assert isinstance(json.loads(call["function"]["arguments"])["x"], int)
    events = post_stream(client, PATH, {"model": "fp32", "messages": MESSAGES, **body})
    deltas = [
        part for event in events[:-1] for part in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert deltas[0]["id"] != call["id"]
    assert deltas[0]["function"]["name"] == "f"
    assert all("id" not in part and "name" not in part["function"] for part in deltas[1::2])
    first = [part["function"]["arguments"] for part in deltas if part["index"] == 0]
    assert "".join(first) == call["function"]["arguments"]


def test_json_schema_forms_the_answer(client: httpx2.Client) -> None:
    schema = TOOL["function"]["parameters"]  # type: ignore[index]
    form = {"type": "json_schema", "json_schema": {"name": "point", "schema": schema}}
    answer = ask(client, response_format=form, temperature=0.5, seed=3, max_tokens=200)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["x"], int)


def test_a_seed_makes_answers_repeatable_and_none_does_not(client: httpx2.Client) -> None:
    def text(**more: Any) -> str:
        answer = ask(client, **{**SAMPLED, **more})
        content: str = answer["choices"][0]["message"]["content"]
        return content

    assert text() == text()
    assert text(seed=None, temperature=2) != text(seed=None, temperature=2)


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


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "yes|no"}, "yes|no"),
        ({"choice": ["a.b", "c"]}, r"a\.b|c"),
        ({"json": {"type": "boolean"}}, "true|false"),
    ],
)
def test_structured_outputs_form_the_answer(
    client: httpx2.Client, outputs: dict[str, Any], pattern: str
) -> None:
    answer = ask(client, structured_outputs=outputs, temperature=1, max_tokens=20)
    assert re.fullmatch(pattern, answer["choices"][0]["message"]["content"])


def test_every_event_has_the_usage_so_far(client: httpx2.Client) -> None:
    body = {"model": "fp32", "messages": MESSAGES, "max_tokens": 6, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, _ = post_stream(client, PATH, {**body, "stream_options": options})
    usages = [event["usage"] for event in events]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"model": "gpt-4o"}, 404, "model", "fp32"),
        ({"messages": []}, 400, None, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, None, "messages[0].role"),
        ({"temperature": -1}, 400, None, "temperature"),
        ({"n": 0}, 400, None, "n must"),
        ({"n": "2"}, 400, "n", "int"),
        ({"top_logprobs": 2}, 400, "top_logprobs", "logprobs=true"),
        ({"store": True}, 400, "store", "must not be True"),
        ({"modalities": ["audio"]}, 400, "modalities[0]", "'audio', which is not supported"),
        ({"prediction": {}}, 400, "prediction", "not supported"),
        ({"tools": [TOOL], "tool_choice": ALLOWED | {"allowed_tools": {}}}, 400, "tool_choice", ""),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, 400, "structured_outputs", "one"),
        (
            {"response_format": {"type": "json_schema"}},
            400,
            "response_format.json_schema.schema",
            "is",
        ),
        ({"stop": ["x"] * 65}, 400, None, "stop must be at most 64"),
        ({"logit_bias": {"a": 1}}, 400, "logit_bias", "token ids"),
        ({"stream_options": {"include": True}}, 400, "stream_options.include", "not supported"),
    ],
)
def test_wrong_bodies_name_the_field(
    client: httpx2.Client, body: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    error = reject(client, status, **body)
    assert words in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", ["", "[]", "{", '"x"', "null", "[" * 100_000, '{"n": 1e999}'])
def test_bodies_that_are_no_object(client: httpx2.Client, body: str) -> None:
    response = client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ],
)
def test_a_text_model_says_that_it_reads_only_text(client: httpx2.Client, part: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi."}, part]}]
    response = client.post(PATH, json={"model": "fp32", "messages": messages})
    assert response.status_code == 400
    assert "messages[0] has a part" in response.json()["error"]["message"]
    assert "reads text only" in response.json()["error"]["message"]

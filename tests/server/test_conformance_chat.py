"""Behavior that the tests of llama.cpp's server and of vLLM expect of chat completions.

`benchmarks/results/server-conformance.md` lists the cases with the peers' tests.
"""

import json
from typing import Any

import httpx2
import pytest
from tests.server.events import post_stream

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "What is the best book"}
MESSAGES = [{"role": "system", "content": "Book"}, USER]
LONG = [{"role": "user", "content": "What is the best book " * 200}]
NO_TOOL_PARAMETERS = {"type": "function", "function": {"name": "now"}}


def post(client: httpx2.Client, **body: Any) -> httpx2.Response:
    return client.post(PATH, json={"model": "fp32", "messages": MESSAGES, "max_tokens": 8, **body})


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = post(client, **body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: httpx2.Client, **body: Any) -> list[Any]:
    """The chunks of an answer, without the last event."""
    body = {"model": "fp32", "messages": MESSAGES, "max_tokens": 8, **body}
    *chunks, last = post_stream(client, PATH, body)
    assert last == "[DONE]"
    return chunks


def test_an_answer_has_an_id_a_fingerprint_and_usage(client: httpx2.Client) -> None:
    answer = ask(client, ignore_eos=True)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"].startswith("fp_")
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"


def test_parts_of_a_message_are_joined(client: httpx2.Client) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " the best book"}]
    whole = ask(client, messages=[USER], seed=1)
    assert ask(client, messages=[{**USER, "content": parts}], seed=1)["choices"] == whole["choices"]


def test_the_first_chunk_has_the_role_and_the_last_one_the_reason(client: httpx2.Client) -> None:
    first, *others = stream(client, ignore_eos=True)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *others, last = others
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in others)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in others)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert len({chunk["id"] for chunk in [first, *others, last]}) == 1


def test_n_answers(client: httpx2.Client) -> None:
    choices = ask(client, n=2)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "foo"}}}, "foo"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}, 7),
        ({"type": "text"}, None),
    ],
)
def test_a_response_format_forms_the_answer(
    client: httpx2.Client, form: dict[str, Any], content: Any
) -> None:
    text = ask(client, response_format=form, max_tokens=40)["choices"][0]["message"]["content"]
    assert content is None or json.loads(text) == content


def test_a_json_object_begins_with_a_brace(client: httpx2.Client) -> None:
    text = ask(client, response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert text.lstrip()[:1] in ("", "{")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "sound"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": 123}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 123}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "hiccup"}}},
        {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {"type": "object", "properties": {"foo": "bar"}, "required": ["foo"]},
            },
        },
    ],
)
def test_a_wrong_response_format_is_a_400(client: httpx2.Client, form: dict[str, Any]) -> None:
    assert post(client, response_format=form).status_code == 400


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "string",
        [],
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
        [{"content": "hello"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    ],
)
def test_wrong_messages_are_a_400(client: httpx2.Client, messages: Any) -> None:
    response = post(client, messages=messages)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_prompt_beyond_the_context_is_a_400(client: httpx2.Client, streams: bool) -> None:
    response = post(client, messages=LONG, stream=streams)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context-length"
    assert "tokens" in error["message"]


def test_logprobs_join_to_the_answer(client: httpx2.Client) -> None:
    choice = ask(client, logprobs=True, top_logprobs=5, ignore_eos=True)["choices"][0]
    entries = choice["logprobs"]["content"]
    data = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert data.decode(errors="replace") == choice["message"]["content"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 5


def test_streamed_logprobs_equal_those_of_the_answer(client: httpx2.Client) -> None:
    options = {"logprobs": True, "top_logprobs": 2, "ignore_eos": True, "seed": 3}
    whole = ask(client, **options)["choices"][0]["logprobs"]["content"]
    chunks = stream(client, **options)
    parts = [chunk["choices"][0].get("logprobs") or {"content": []} for chunk in chunks]
    assert [entry for part in parts for entry in part["content"]] == whole


def test_biased_tokens_do_not_appear(client: httpx2.Client) -> None:
    options = {"logprobs": True, "max_tokens": 24, "ignore_eos": True}
    entries = ask(client, **options)["choices"][0]["logprobs"]["content"]
    texts = {entry["token"] for entry in entries}
    body = {"model": "fp32", "content": "".join(sorted(texts))}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    bias = {str(token): -100 for token in tokens}
    entries = ask(client, **options, logit_bias=bias)["choices"][0]["logprobs"]["content"]
    assert texts.isdisjoint(entry["token"] for entry in entries)


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({"98765432": 1}, "98765432"),
        ({"not_a_token_id": 50}, "not_a_token_id"),
        ({"1": "not_a_number"}, "logit_bias"),
        ([1, 2], "logit_bias"),
    ],
)
def test_a_wrong_logit_bias_is_named(client: httpx2.Client, bias: Any, words: str) -> None:
    response = post(client, logit_bias=bias)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("token", [98765432, -1])
def test_stop_tokens_outside_of_the_vocabulary_are_a_400(client: httpx2.Client, token: int) -> None:
    response = post(client, stop_token_ids=[token])
    assert response.status_code == 400
    assert str(token) in response.json()["error"]["message"]


def test_a_stop_token_ends_the_answer(client: httpx2.Client) -> None:
    whole = ask(client, temperature=0, ignore_eos=True)
    assert whole["choices"][0]["finish_reason"] == "length"
    content = whole["choices"][0]["message"]["content"]
    tokens = client.post("/tokenize", json={"model": "fp32", "prompt": content})
    cut = ask(client, temperature=0, stop_token_ids=tokens.json()["tokens"])
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_no_choice_of_a_tool_means_auto(client: httpx2.Client) -> None:
    without = ask(client, tools=[NO_TOOL_PARAMETERS], seed=1)["choices"]
    for choice in (None, "auto"):
        answer = ask(client, tools=[NO_TOOL_PARAMETERS], tool_choice=choice, seed=1)
        assert answer["choices"] == without
    assert ask(client, tool_choice=None, seed=1)["choices"] == ask(client, seed=1)["choices"]


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [NO_TOOL_PARAMETERS], "tool_choice": "bogus"},
        {"tools": [NO_TOOL_PARAMETERS], "tool_choice": {"type": "function"}},
        {"tools": [NO_TOOL_PARAMETERS], "tool_choice": 3},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "now"}}},
        {"tools": [{"type": "function"}]},
        {"tools": "now"},
    ],
)
def test_a_wrong_choice_of_a_tool_is_a_400(client: httpx2.Client, body: dict[str, Any]) -> None:
    assert post(client, **body).status_code == 400


def test_a_prefilled_answer_is_continued(client: httpx2.Client) -> None:
    messages = [USER, {"role": "assistant", "content": "Perhaps"}]
    answer = ask(client, messages=messages, continue_final_message=True, seed=1)
    parts = [{"type": "text", "text": "Per"}, {"type": "text", "text": "haps"}]
    messages[1] = {"role": "assistant", "content": parts}  # type: ignore[dict-item]
    again = ask(client, messages=messages, continue_final_message=True, seed=1)
    assert again["choices"] == answer["choices"]


@pytest.mark.parametrize(
    "name", ["json_schema", "grammar", "return_progress", "timings_per_token", "cache_salt"]
)
def test_options_of_other_servers_are_rejected_by_name(client: httpx2.Client, name: str) -> None:
    response = post(client, **{name: {}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize(
    "body", [b"not json{{{", b'["not", "an", "object"]', b"42", b"null", b"", b'{"user": "\xff"}']
)
def test_a_body_that_is_no_object_is_a_400(client: httpx2.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert client.post(PATH, content=body, headers=headers).status_code == 400


def test_stream_options_need_a_stream(client: httpx2.Client) -> None:
    response = post(client, stream_options={"include_usage": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


def test_cached_tokens_are_counted(client: httpx2.Client) -> None:
    messages = [{"role": "user", "content": "The cache holds whole blocks. " * 5}]
    ask(client, messages=messages)
    usage = ask(client, messages=messages)["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < usage["prompt_tokens"]
    last = stream(client, messages=messages, stream_options={"include_usage": True})[-1]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == cached

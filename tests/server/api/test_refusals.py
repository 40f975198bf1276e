"""Bodies that are refused, and errors of a model: status, kind, field and text."""

from typing import Any

import httpx2
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.server.api.test_chat_completions import ALLOWED, NOW, TOOL, USER, named
from tests.server.calls import MODEL

from ortolan.runtime import Service, errors

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def said(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}, *parts]}]}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


LONG = {"messages": [{"role": "user", "content": "What is the best book " * 200}]}
BROKEN_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
PART_OF_IMAGE = {"type": "input_image", "image_url": "x"}

REFUSED: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"model": "gpt-4o"},
        {"messages": None},
        {"messages": []},
        {"messages": [123]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [BROKEN_CALL]},
        said({"type": "image_url", "image_url": {"url": "file:///x"}}),
        said({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
        said({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}),
        LONG,
        {**LONG, "stream": True},
        {"temperature": -1},
        {"n": "2"},
        {"top_logprobs": 2},
        {"store": True},
        {"modalities": ["audio"]},
        {"prediction": {}},
        {"typical_p": 0.9},
        {"mirostat": 2},
        {"seed": 1.5},
        {"seed": 1e300},
        {"guided_json": None, "seed": "1"},
        {"guided_json": None, "x": 99999999999999999999999},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "now"}}},
        {"tools": [NOW], "tool_choice": "bogus"},
        {"tools": [TOOL], "tool_choice": ALLOWED | {"allowed_tools": {}}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        {"structured_outputs": {"grammar": "a"}},
        {"response_format": {"type": "sound"}},
        {"response_format": {"type": "json_schema"}},
        named(123),
        named({"type": 123}),
        {"stop": ["x"] * 65},
        {"stop_token_ids": [98765432]},
        {"logit_bias": {"not_an_id": 1}},
        {"logit_bias": {"1": "not_a_number"}},
        {"stream_options": {"include": True}},
        {"stream_options": {"include_usage": True}},
    ],
    COMPLETIONS: [
        {"prompt": None},
        {"prompt": []},
        {"prompt": [1.5]},
        {"prompt": [[["x"]]]},
        {"prompt": [[]]},
        {"prompt": ["a", 1]},
        {"prompt": [-1]},
        {"prompt": "I believe the meaning of life is" * 100},
        {"max_tokens": -2},
        {"n": 257},
        {"logprobs": -1, "stream": True},
        {"no_stop_trim": True},
        {"stream_options": {}},
    ],
    RESPONSES: [
        {"input": None},
        {"input": []},
        {"input": "Hi.", "previous_response_id": "resp_1"},
        item(type="item_reference", id="x"),
        item(role="user"),
        item(role="robot", content="x"),
        item(role="user", content="x", call_id="c"),
        item(role="user", content=[{"type": "input_text"}]),
        item(role="user", content=[PART_OF_IMAGE]),
        item(type="function_call_output", call_id="c", output="x"),
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": {"type": "file_search"}},
        {"tool_choice": {"type": "allowed_tools", "tools": []}},
        {"tool_choice": "sometimes"},
        {"text": {"format": {"type": "json_schema"}}},
        {"top_logprobs": 2},
        {"background": True},
        {"truncation": "auto"},
        {"conversation": "c"},
        {"max_output_tokens": 0},
        {"include": ["file_search_call.results"]},
    ],
    "/v1/embeddings": [
        {"input": []},
        {"input": ""},
        {"input": "a " * 40},
        {"input": [999]},
        {"input": "a", "dimensions": 4},
        {"input": "a", "prompt_name": "query"},
        {"input": "a", "model": "labels"},
        {"input": "/etc/hostname", "model": "images"},
        {"input": ["a"] * 2049},
    ],
    "/v1/rerank": [
        {"documents": []},
        {"top_n": 0},
        {"model": "labels"},
        {"model": "pairs", "query": "a " * 30},
        {"model": "pairs", "documents": ["a " * 30]},
        {"model": "images"},
        {"documents": [{"title": "x"}]},
    ],
    "/tokenize": [{}, {"content": "a", "prompt": "a"}, {"with_pieces": True}],
    "/detokenize": [{"tokens": [-1]}],
}

REST: dict[str, dict[str, Any]] = {
    CHAT: {**MODEL, "messages": [USER], "max_tokens": 8},
    COMPLETIONS: {**MODEL, "prompt": "Hi.", "max_tokens": 8},
    RESPONSES: {**MODEL, "input": "Hi."},
    "/v1/embeddings": {"model": "embedder"},
    "/v1/rerank": {"model": "embedder", "query": "a b", "documents": ["a b c", "d"]},
    "/tokenize": MODEL,
    "/detokenize": MODEL,
}


def described(response: httpx2.Response) -> str:
    """Status and error of a response in a line, and whether clients may send it again."""
    error = response.json()["error"]
    retry = {"false": ", no retry"}.get(response.headers.get("x-should-retry", ""), "")
    kind = f"{error['type']}, {error['code']}, {error['param']}"
    return f"{response.status_code}{retry} ({kind}): {error['message']}"


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, body) for path, bodies in REFUSED.items() for body in bodies],
    ids=lambda value: str(value)[:80],
)
def test_a_body_is_refused_with_its_field(
    client: httpx2.Client, path: str, body: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert described(client.post(path, json={**REST[path], **body})) == snapshot


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b'["not", "an", "object"]', b"{", b"not json{{{", b'"x"', b"42", b"null"),
        *(b"[" * 100_000, b'{"n": 1e999}', b'{"user": "\xff"}', b'{"temperature": 1e999}'),
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_body_that_is_no_object_is_a_400(
    client: httpx2.Client, body: bytes, snapshot: SnapshotAssertion
) -> None:
    headers = {"content-type": "application/json"}
    assert described(client.post(CHAT, content=body, headers=headers)) == snapshot


@pytest.mark.parametrize(
    "error",
    [
        errors.InputError("a"),
        errors.ContextLengthError("a"),
        errors.ChatTemplateError("a"),
        errors.MemoryPlanError("a"),
        errors.BundleFileError("a"),
        errors.DeviceError("a"),
        errors.ServiceClosedError("a"),
        errors.ServiceError("a"),
        errors.NumericError("a"),
        errors.ComputeError("a"),
        errors.MissingExtraError("a"),
        errors.QueueFullError("a", retry_after_s=0.25),
        KeyError("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_model_says_whether_it_may_pass(
    client: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    snapshot: SnapshotAssertion,
) -> None:
    def submit(*_: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(Service, "submit", submit)
    response = client.post(COMPLETIONS, json=REST[COMPLETIONS])
    assert described(response) == snapshot
    if isinstance(error, errors.QueueFullError):
        assert response.headers["retry-after-ms"] == "250"
        assert response.headers["retry-after"] == "1"

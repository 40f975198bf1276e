"""Work that takes long leaves the event loop, so that other requests are answered meanwhile."""

import threading
import time
from typing import Any

import httpx2
import pytest
from tests.server.live import LiveServer

from ortolan.runtime import Grammar
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.inputs.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi."}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
TEXT = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("place", "path", "body"),
    [
        ((Tokenizer, "encode"), "/tokenize", {"content": "abc"}),
        ((ChatTemplate, "prompt"), "/tokenize", {"messages": [USER]}),
        ((Tokenizer, "decode"), "/detokenize", {"tokens": [5, 6]}),
        ((Tokenizer, "encode"), "/v1/completions", {"prompt": "abc", "max_tokens": 1}),
        (
            (Grammar, "json_schema"),
            "/v1/chat/completions",
            {"messages": [USER], "response_format": FORMAT, "max_tokens": 9},
        ),
        (
            (Grammar, "json_schema"),
            "/v1/responses",
            {"input": "Hi.", "text": TEXT, "max_output_tokens": 9},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_others_are_answered_meanwhile(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, place: Any, path: str, body: Any
) -> None:
    owner, name = place
    method, has_begun, may_go_on = getattr(owner, name), threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(30)
        return method(*args, **options)

    monkeypatch.setattr(owner, name, slow)
    answers: list[httpx2.Response] = []

    def ask() -> None:
        answers.append(server.call("POST", path, json={"model": "fp32", **body}))

    thread = threading.Thread(target=ask)
    thread.start()
    assert has_begun.wait(30)
    try:
        assert server.call("GET", "/health", timeout=10).status_code == 200
    finally:
        may_go_on.set()
        thread.join(60)
    assert answers[0].status_code == 200, answers[0].text


@pytest.mark.parametrize("body", [b'"\\"[' * 600_000, b'"[' * 600_001 + b"\\", b'"\\' * 900_000])
def test_parts_of_broken_strings_are_counted_quickly(client: httpx2.Client, body: bytes) -> None:
    begun_at = time.perf_counter()
    headers = {"content-type": "application/json"}
    assert client.post("/tokenize", content=body, headers=headers).status_code == 400
    assert time.perf_counter() - begun_at < 5


def test_a_body_of_very_many_parts_is_rejected(client: httpx2.Client) -> None:
    tools: list[Any] = [{}] * 100_000
    answer = client.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("The body may have at most 100000")
    texts = {"content": '{"[\\' * 100_000, "model": "fp32"}
    assert client.post("/tokenize", json=texts).status_code == 200

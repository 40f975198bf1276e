"""Clients that leave, wait or come in crowds, and work that keeps no others waiting."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.live import LiveServer, held, live_server, serving_fp32, stats, wait_until

from ortolan.runtime import Grammar, Service, load
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.server import Settings, events
from ortolan.server import models as module

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "abc " * 8, "max_tokens": 180, "ignore_eos": True, "seed": 1}
MESSAGES = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 150}


@pytest.fixture
def small(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    with serving_fp32(bundles, serve={"slots": 2, "queue": 2}) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_stops_its_request_alone(
    small: LiveServer, path: str, stream: bool
) -> None:
    body = {**LONG, "stream": stream}
    if "chat" in path:
        body = {**MESSAGES, "ignore_eos": True, "stream": stream}
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    answers: list[Any] = []
    other = threading.Thread(target=lambda: answers.append(small.call("POST", PATH, json=LONG)))
    with held(small) as commands:
        with socket.create_connection(("127.0.0.1", small.port)) as connection:
            connection.sendall(head.encode() + data)
            if stream:
                connection.recv(10)
            wait_until(lambda: stats(small).running)
            other.start()
        wait_until(lambda: commands.qsize() == 2)  # of the other request, and to end this one
    wait_until(lambda: stats(small).running + stats(small).waiting == 0 and not other.is_alive())
    assert answers[0].json()["usage"]["completion_tokens"] == 180
    assert stats(small).new_tokens < 360


def test_a_full_queue_says_when_to_come_back(small: LiveServer) -> None:
    with ThreadPoolExecutor(4) as threads, held(small):
        others = [threads.submit(small.call, "POST", PATH, json=LONG) for _ in range(4)]
        wait_until(lambda: stats(small).waiting + stats(small).running == 4)
        response = small.call("POST", PATH, json=LONG)
    assert {other.result().status_code for other in others} == {200}
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "queue-full"
    assert int(response.headers["retry-after-ms"]) > 0
    assert int(response.headers["retry-after"]) >= 1


def test_all_of_n_or_none(small: LiveServer) -> None:
    response = small.call("POST", PATH, json={**LONG, "n": 5})
    assert response.status_code == 429
    wait_until(lambda: stats(small).running + stats(small).waiting == 0)


def test_time_is_limited(bundles: dict[str, Path]) -> None:
    with serving_fp32(bundles, request_timeout_s=0.3) as server:
        with held(server):
            response = server.call("POST", PATH, json=LONG)
            stream = server.call("POST", "/v1/responses", json={"input": "a", "stream": True})
        wait_until(lambda: stats(server).running + stats(server).waiting == 0)
    ends = [line for line in stream.text.splitlines() if line.startswith("event:")][-2:]
    assert ends == ["event: error", "event: response.failed"]
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"


def test_bundles_load_when_named_and_are_dropped_for_others(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []

    def limited(path: Path, **options: Any) -> Any:
        """As if there were memory for one bundle."""
        loads.append(path)
        if len(server.models.loaded) > 0:
            raise MemoryPlanError("no room")
        return load(path, **options)

    with live_server(Settings(bundles=bundles, load={"threads": 1})) as server:
        monkeypatch.setattr(module, "load", limited)
        assert [m.name for m in server.models.loaded] == ["fp32"]
        response = server.call("POST", PATH, json={**LONG, "model": "int4", "max_tokens": 3})
        assert response.status_code == 200, response.text
        assert [m.name for m in server.models.loaded] == ["int4"]
    assert loads == [bundles["int4"]] * 2


def test_a_request_without_room_drops_models_that_no_other_uses(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Service.submit
    most = 1

    def limited(self: Service, *args: Any, **options: Any) -> Any:
        """As if there were memory for a request beside so many bundles."""
        if len(server.models.loaded) > most:
            raise MemoryPlanError("no room")
        return submit(self, *args, **options)

    with live_server(Settings(bundles=bundles, load={"threads": 1})) as server:
        body = {**LONG, "max_tokens": 3}
        assert server.call("POST", PATH, json={**body, "model": "int4"}).status_code == 200
        monkeypatch.setattr(Service, "submit", limited)
        assert server.call("POST", PATH, json={**body, "model": "fp32"}).status_code == 200
        assert [m.name for m in server.models.loaded] == ["fp32"]
        most = 0
        assert server.call("POST", PATH, json={**body, "model": "fp32"}).status_code == 400
        assert [m.name for m in server.models.loaded] == ["fp32"]


def test_a_request_that_is_accepted_after_its_client_has_left_is_cancelled(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, may_go_on = Service.submit, threading.Event()

    def slow(self: Service, *args: Any, **options: Any) -> Any:
        may_go_on.wait(60)
        return submit(self, *args, **options)

    monkeypatch.setattr(Service, "submit", slow)
    with serving_fp32(bundles, serve={"slots": 2, "queue": 50}) as server:
        with pytest.raises(httpx2.ReadTimeout):
            server.call("POST", PATH, json={**LONG, "n": 50}, timeout=0.3)
        wait_until(lambda: not server.connections)
        may_go_on.set()
        wait_until(lambda: not server.tasks and stats(server).running + stats(server).waiting == 0)
        assert not stats(server).refused
        assert stats(server).new_tokens < 50 * LONG["max_tokens"]


def test_a_load_blocks_no_other_model_and_survives_its_client(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, loads = threading.Event(), []

    def slow(path: Path, **options: Any) -> Any:
        loads.append(path)
        gate.wait(60)
        return load(path, **options)

    with live_server(Settings(bundles=bundles, load={"threads": 1})) as server:
        monkeypatch.setattr(module, "load", slow)
        body = {**LONG, "model": "int4", "max_tokens": 3}
        for _ in range(2):
            with pytest.raises(httpx2.ReadTimeout):
                server.call("POST", PATH, json=body, timeout=0.3)
        assert server.call("POST", PATH, json={**body, "model": "fp32"}).status_code == 200
        gate.set()
        assert server.call("POST", PATH, json=body, timeout=30).status_code == 200
        assert loads == [bundles["int4"]]


def test_a_stream_without_news_sends_comments(
    small: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.05)
    body = {**LONG, "max_tokens": 5, "stream": True}
    with ExitStack() as stack:
        client = stack.enter_context(small.client())
        with held(small):
            stream = client.stream("POST", PATH, json=body)
            lines = stack.enter_context(stream).iter_lines()
            comments = [line for line in islice(lines, 8) if line == ": waiting"]
        rest = [line for line in lines if line]
    assert len(comments) >= 2  # at most one step, and its event, comes before the gate
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("timeout_s", "choices"), [(60.0, 4), (0.1, 250)])
def test_a_stop_finishes_what_ends_in_time_and_ends_the_rest_with_an_error(
    bundles: dict[str, Path],
    stream: bool,
    timeout_s: float,
    choices: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {**LONG, "n": choices, "stream": stream}
    options: dict[str, Any] = {"slots": 1, "queue": 300}
    with ThreadPoolExecutor(1) as thread, caplog.at_level(logging.INFO, "ortolan.server.access"):
        with serving_fp32(bundles, shutdown_timeout_s=timeout_s, serve=options) as server:
            answer = thread.submit(server.call, "POST", PATH, json=body)
            wait_until(lambda: stats(server).running)
        response = answer.result(60)
    last = [line for line in response.text.splitlines() if line][-1].removeprefix("data: ")
    if choices < 100:
        assert response.status_code == 200
        assert "error" not in response.text
        assert last == "[DONE]" or json.loads(last)["usage"]["completion_tokens"] == 4 * 180
    else:
        assert response.status_code == (200 if stream else 503)
        assert json.loads(last)["error"]["code"] == "stopping"
        assert "ended=stopped" in caplog.text


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

"""`/v1/responses` as a WebSocket: turns, errors, limits, and clients that leave."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.serving.faults import failing
from tests.server.live import LiveServer, held, serving_fp32, stats, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ortolan.server import web_socket
from ortolan.server.security import LOCAL_HOSTS

PATH = "/v1/responses"
KEY = {"Authorization": "Bearer sk-one"}
TURN: dict[str, Any] = {
    "type": "response.create",
    "input": "Hi.",
    "max_output_tokens": 5,
    "ignore_eos": True,
}
LONG = {**TURN, "max_output_tokens": 150}


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    with serving_fp32(
        bundles,
        keys=frozenset({"sk-one"}),
        hosts=LOCAL_HOSTS,
        origins=("https://good.example",),
        max_body_bytes=10_000,
        body_timeout_s=0.4,
        write_timeout_s=0.5,
        serve={"slots": 2, "queue": 4},
    ) as running:
        yield running


@contextmanager
def opened(server: LiveServer, path: str = PATH, **headers: str) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{server.port}{path}"
    fields = {**KEY, **{name.replace("_", "-"): value for name, value in headers.items()}}
    with connect(url, additional_headers=fields, proxy=None, close_timeout=2) as connection:
        yield connection


def refused(server: LiveServer, path: str = PATH, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and error of a connection that is not accepted."""
    with pytest.raises(InvalidStatus) as caught, opened(server, path, **headers):
        pass
    response = caught.value.response
    assert response.headers["x-content-type-options"] == "nosniff"
    return response.status_code, json.loads(response.body)["error"]


def turn(connection: ClientConnection, message: Any) -> list[dict[str, Any]]:
    """Send a message; return all that is sent until the turn ends."""
    connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in (
        "error",
        "response.completed",
        "response.incomplete",
    ):
        events.append(json.loads(connection.recv(timeout=30)))
    return events


def rest(connection: ClientConnection) -> list[dict[str, Any]]:
    """All that is sent until the connection is closed."""
    events = []
    with suppress(ConnectionClosed):
        while True:
            events.append(json.loads(connection.recv(timeout=30)))
    return events


def error(connection: ClientConnection, message: Any) -> tuple[int, str]:
    """Status and code of the error that a message causes."""
    (event,) = turn(connection, message)
    assert event["error"]["message"]
    return event["status"], event["error"]["code"]


def still_answers(connection: ClientConnection) -> bool:
    return bool(turn(connection, TURN)[-1]["type"] == "response.incomplete")


def is_idle(server: LiveServer) -> bool:
    return not (stats(server).running + stats(server).waiting or server.connections)


def test_events_are_those_of_a_stream(server: LiveServer) -> None:
    with opened(server) as connection:
        events = turn(connection, TURN)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    body = {name: value for name, value in TURN.items() if name != "type"}
    stream = server.call("POST", PATH, json={**body, "stream": True}, headers=KEY)
    lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
    assert [event["type"] for event in events] == [json.loads(line)["type"] for line in lines]
    final, other = events[-1]["response"], json.loads(lines[-1])["response"]
    texts = [one["output"][0]["content"][0]["text"] for one in (final, other)]
    assert texts[0] == texts[1] != ""
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == texts[0]


def test_turns_continue_the_last_response_that_is_not_stored(server: LiveServer) -> None:
    with opened(server) as connection:
        first = turn(connection, {**TURN, "store": False})[-1]["response"]
        follow = {**TURN, "store": False, "previous_response_id": first["id"]}
        second = turn(connection, follow)[-1]["response"]
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert error(connection, follow) == (400, "previous_response_not_found")  # not the last
        third = {**follow, "previous_response_id": second["id"]}
        assert turn(connection, third)[-1]["type"] == "response.incomplete"
    with opened(server) as connection:  # nothing of another connection
        assert error(connection, third) == (400, "previous_response_not_found")
    response = server.call("GET", f"{PATH}/{second['id']}", headers=KEY)
    assert response.status_code == 404


def test_stored_responses_outlive_their_connection(server: LiveServer) -> None:
    with opened(server) as connection:
        first = turn(connection, {**TURN, "store": True})[-1]["response"]
    follow = {**TURN, "previous_response_id": first["id"]}
    with opened(server) as connection:
        assert error(connection, {**follow, "store": False}) == (400, "previous_response_not_found")
        assert turn(connection, follow)[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(
    "change",
    [
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]},
        {"no_such_field": 1},
        {"stream": True},
        {"max_output_tokens": 0},
    ],
)
def test_a_failed_turn_forgets_what_it_continues(
    server: LiveServer, change: dict[str, Any]
) -> None:
    with opened(server) as connection:
        first = turn(connection, TURN)[-1]["response"]
        follow = {**TURN, "previous_response_id": first["id"]}
        assert turn(connection, {**follow, **change})[-1]["status"] == 400
        assert error(connection, follow) == (400, "previous_response_not_found")


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("", 400, "invalid-json"),
        ("{", 400, "invalid-json"),
        ('{"input": [{"x": ' + "[" * 5_000, 400, "invalid-json"),
        (b"\xff\xfe", 400, "invalid-json"),
        (b'{"type": "response.create", "input": "\xff"}', 400, "invalid-json"),
        ("[]", 400, "invalid-body"),
        ("{}", 400, "invalid-body"),
        ({**TURN, "type": "response.cancel"}, 400, "invalid-body"),
        ({**TURN, "type": None}, 400, "invalid-body"),
        ({**TURN, "background": False}, 400, "invalid-body"),
        ({**TURN, "stream_options": {}}, 400, "invalid-body"),
        ({**TURN, "model": "nothing"}, 404, "model_not_found"),
        ({**TURN, "input": "x" * 10_000}, 413, "body-size"),
    ],
)
def test_a_wrong_message_is_an_error_and_the_connection_goes_on(
    server: LiveServer, message: Any, status: int, code: str
) -> None:
    with opened(server) as connection:
        assert error(connection, message) == (status, code)
        if isinstance(message, bytes):  # also as text, which is not checked before
            connection.send(message, text=True)
            assert json.loads(connection.recv(timeout=30))["error"]["code"] == code
        assert still_answers(connection)


def test_a_much_larger_message_closes_the_connection(server: LiveServer) -> None:
    with opened(server) as connection:
        with pytest.raises(ConnectionClosed) as caught:
            turn(connection, "x" * 30_000)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_turns_run_one_after_the_other(server: LiveServer) -> None:
    with opened(server) as connection:
        types = [event["type"] for event in turn(connection, TURN)]
        for _ in range(3):
            connection.send(json.dumps(TURN))
        events = [json.loads(connection.recv(timeout=30)) for _ in range(3 * len(types))]
    assert [event["type"] for event in events] == 3 * types


def test_too_many_messages_close_the_connection(server: LiveServer) -> None:
    with opened(server) as connection:
        for _ in range(web_socket.MAX_WAITING + 2):
            connection.send(json.dumps(LONG))
        events = rest(connection)
    assert (events[-1]["status"], events[-1]["error"]["code"]) == (429, "too-many-messages")
    wait_until(lambda: is_idle(server))


def test_a_client_that_leaves_stops_its_turn(server: LiveServer) -> None:
    before = stats(server).new_tokens
    with opened(server) as connection:
        for _ in range(4):
            connection.send(json.dumps(LONG))
        connection.recv(timeout=30)
        connection.socket.shutdown(socket.SHUT_RDWR)  # without a closing handshake
    wait_until(lambda: is_idle(server))
    assert stats(server).new_tokens - before < 4 * 150


def test_a_client_that_does_not_read_is_cut_off(server: LiveServer) -> None:
    message = json.dumps(LONG).encode()
    frame = b"\x81\xfe" + len(message).to_bytes(2, "big") + bytes(4) + message  # mask of zeros
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(handshake("localhost"))
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        raw.sendall(frame)
        wait_until(lambda: server.connections)
        wait_until(lambda: is_idle(server))  # it answered no ping


def handshake(host: str) -> bytes:
    return (
        f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer sk-one\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xfe\x10\x00abcd{",  # 4096 bytes, of which one comes
        b"\x01\x81abcd\x1a",  # a fragment of one byte, and no last one
    ],
    ids=["a frame", "fragments"],
)
def test_a_message_that_does_not_end_is_an_error(server: LiveServer, data: bytes) -> None:
    with opened(server) as connection:
        connection.socket.sendall(data)
        event = json.loads(connection.recv(timeout=10))
        assert (event["status"], event["error"]["code"]) == (408, "body-timeout")


def test_an_idle_connection_stays_open(server: LiveServer) -> None:
    with opened(server) as connection:
        time.sleep(0.7)  # longer than all limits on the time of a message
        assert still_answers(connection)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Authorization": ""}, 401, "invalid_api_key"),
        ({"Authorization": "Basic sk-one"}, 401, "invalid_api_key"),
        ({"Origin": "https://evil.example"}, 403, "origin"),
        ({"Origin": "null"}, 403, "origin"),
        ({"path": "/"}, 404, "no-such-path"),
        ({"path": "/v1/completions"}, 404, "no-such-path"),
        ({"path": f"{PATH}/x"}, 404, "no-such-path"),
    ],
)
def test_a_connection_that_may_not_be_is_refused(
    server: LiveServer, headers: dict[str, str], status: int, code: str
) -> None:
    found, body = refused(server, **headers)
    assert (found, body["code"]) == (status, code)


def test_allowed_pages_and_no_foreign_hosts_are_accepted(server: LiveServer) -> None:
    for origin in ("https://good.example", server.url):
        with opened(server, Origin=origin) as connection:
            assert turn(connection, TURN)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(handshake("evil.example"))
        assert raw.recv(1000).startswith(b"HTTP/1.1 403")


def test_the_number_of_connections_is_limited(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_socket, "MAX_SOCKETS", 1)
    with opened(server):
        assert refused(server)[1]["code"] == "too-many-connections"
    wait_until(lambda: not server.connections)
    with opened(server) as connection:
        assert turn(connection, TURN)


def test_an_old_connection_ends_after_its_turn(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_socket, "MAX_AGE_S", 0.3)
    with opened(server) as connection:
        assert turn(connection, TURN)
        event = json.loads(connection.recv(timeout=10))
        assert event["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


def test_a_full_queue_says_when_to_come_back(server: LiveServer) -> None:
    with opened(server) as connection:
        post: dict[str, Any] = {"json": {"prompt": "abc", "max_tokens": 5}, "headers": KEY}
        with ThreadPoolExecutor(6) as threads, held(server):
            others = [
                threads.submit(server.call, "POST", "/v1/completions", **post) for _ in range(6)
            ]
            wait_until(lambda: stats(server).waiting + stats(server).running == 6)
            (event,) = turn(connection, TURN)
        assert {other.result().status_code for other in others} == {200}
    assert (event["status"], event["error"]["code"]) == (429, "queue-full")
    assert int(event["headers"]["retry-after-ms"]) > 0


def test_the_log_has_a_line_per_turn_and_one_per_connection(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: not server.tasks)  # lines of earlier tests are written
    with caplog.at_level(logging.INFO, "ortolan.server.access"):
        with opened(server) as connection:
            turn(connection, TURN)
            turn(connection, {**TURN, "input": []})
        refused(server, Authorization="")
        wait_until(lambda: len(caplog.records) == 4)  # one too many if uvicorn complains
    lines = [record.getMessage().split(" ") for record in caplog.records]
    assert [line[:3] for line in lines if line[2] != "101"] == [
        ["WEBSOCKET", PATH, status] for status in ("200", "400", "401")
    ]
    assert "new_tokens=5" in lines[0]
    assert sum(line[2] == "101" for line in lines) == 1


def test_a_stop_finishes_the_running_turn(bundles: dict[str, Path]) -> None:
    with ExitStack() as stack:
        with serving_fp32(bundles) as server:
            url = f"ws://127.0.0.1:{server.port}{PATH}"
            connection = stack.enter_context(connect(url, proxy=None))
            connection.send(json.dumps(LONG))
            events = [json.loads(connection.recv(timeout=30))]
            reader = threading.Thread(target=lambda: events.extend(rest(connection)))
            reader.start()
        reader.join()
    assert events[-1]["type"] == "response.incomplete"
    assert connection.close_code == 1012


def test_a_turn_that_fails_ends_with_one_error(server: LiveServer) -> None:
    with opened(server) as connection:
        with failing(lambda call: True):
            events = turn(connection, TURN)
        assert [event["type"] for event in events[-2:]] == ["response.in_progress", "error"]
        assert (events[-1]["status"], events[-1]["error"]["code"]) == (500, "compute")
        assert still_answers(connection)


def test_the_time_of_a_turn_is_limited(bundles: dict[str, Path]) -> None:
    with serving_fp32(bundles, request_timeout_s=0.3) as server, opened(server) as connection:
        with held(server):
            event = turn(connection, LONG)[-1]
        assert (event["status"], event["error"]["code"]) == (504, "request-timeout")
        wait_until(lambda: not stats(server).running)

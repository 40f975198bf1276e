"""Requests that no client library sends: malformed or ambiguous."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.live import LiveServer, serving_fp32

from ortolan.server.security import LOCAL_HOSTS

BODY = json.dumps({"prompt": "abc", "max_tokens": 2}).encode()
POST = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    options = {"keys": frozenset({"sk-one"}), "hosts": LOCAL_HOSTS}
    with serving_fp32(bundles, **options) as running:
        yield running


@contextmanager
def connected(server: LiveServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def received(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer(server: LiveServer, request: bytes | str) -> bytes:
    data = request.encode() if isinstance(request, str) else request
    with connected(server) as connection:
        connection.sendall(data)
        return received(connection)


def statuses(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: " + "9" * 5000 + "\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Host: localhost\r\n",
        "Host: localhost\r\nContent-Length: 5\r\n",
        "X-Null: a\x00b\r\n",
    ],
)
def test_ambiguous_requests_are_rejected_and_end_the_connection(
    server: LiveServer, head: str
) -> None:
    hidden = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    request = f"{POST}Authorization: Bearer sk-one\r\n{head}\r\n".encode() + hidden
    assert statuses(answer(server, request)) == [400]


def test_endless_headers_and_trailers_end_the_connection(server: LiveServer) -> None:
    chunked = f"{POST}Authorization: Bearer sk-one\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    for start in (POST, chunked, f"{POST}X: ", f"{chunked}X: "):
        more = b"a" * 900 if start.endswith(" ") else b"X: a\r\n" * 150
        with connected(server) as connection:
            connection.sendall(start.encode())
            with pytest.raises(ConnectionError):
                connection.sendall(more * 50_000)


def test_requests_sent_ahead_are_answered_in_order(server: LiveServer) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert statuses(answer(server, one * 5 + last)) == [200] * 6


def test_a_body_after_an_upgrade_that_is_not_followed_is_read(server: LiveServer) -> None:
    # as Java's client sends it
    head = f"{POST}Authorization: Bearer sk-one\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n"
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    assert statuses(answer(server, request)) == [200]


def test_an_absurd_length_is_rejected_before_the_body(server: LiveServer) -> None:
    for length in (10**9, 10**18):
        head = f"{POST}Authorization: Bearer sk-one\r\nContent-Length: {length}\r\n\r\n"
        start = time.monotonic()
        assert statuses(answer(server, head)) == [413]
        assert time.monotonic() < start + 5


def test_long_headers_are_rejected(server: LiveServer) -> None:
    long = "a" * 1_000_000
    for head in (f"GET /{long} HTTP/1.1\r\n", f"GET / HTTP/1.1\r\nX: {long}\r\n"):
        with connected(server) as connection:
            try:
                connection.sendall(head.encode() + b"Host: localhost\r\n\r\n")
            except ConnectionError:
                continue  # it closed the connection before it had read everything
            assert statuses(received(connection)) in ([400], [])


METHODS = ("HEAD", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get")
MODELS, OLD = "GET /v1/models HTTP/1.1", "GET /v1/models HTTP/1.0"
HEALTH = "GET /health HTTP/1.1"
HOST, CLOSE = "Host: localhost", "Connection: close"
KEY, WRONG = "Authorization: Bearer sk-one", "Authorization: Bearer wrong"
UPGRADE = (HOST, "Connection: Upgrade, close", "Sec-WebSocket-Version: 13")
HANDSHAKE = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
OPEN = ("/health", "/ready", "/openapi.json", "/", "/index.html")
GUARDED = ("/v1/models/fp32", "/metrics", "/v1/nothing")
WRONG_KEYS = ("Bearer", "Basic sk-one", "sk-one", "Bearer sk-one sk-one", "Bearer x, Bearer sk-one")
PLACES = ("key", "api_key", "api-key", "authorization", "token")
OWN_NAMES = ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "[::1")
OTHER_NAMES = ("evil.example", "127.0.0.1.evil.example", "")
FORWARDED = (
    *("X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost", "X-Forwarded-Proto: https"),
    *("Forwarded: for=127.0.0.1;host=localhost", "X-Original-URL: /health"),
    *("X-Rewrite-URL: /health", "X-HTTP-Method-Override: OPTIONS"),
)


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        (OLD, (), 403),
        (OLD, ("Host: evil.example",), 403),
        (OLD, (HOST,), 401),
        (OLD, (HOST, KEY), 200),
        *((f"GET {path} HTTP/1.1", (HOST, CLOSE), 200) for path in OPEN),
        *((f"GET {path} HTTP/1.1", (HOST, CLOSE), 401) for path in GUARDED),
        # keys
        (MODELS, (HOST, CLOSE, "Authorization: bearer sk-one"), 200),
        (MODELS, (HOST, CLOSE, "X-Api-Key: sk-one"), 200),
        *((MODELS, (HOST, CLOSE, f"Authorization: {key}"), 401) for key in WRONG_KEYS),
        (MODELS, (HOST, CLOSE, WRONG, WRONG), 401),
        (MODELS, (HOST, CLOSE, WRONG, "X-Api-Key: sk-one"), 401),
        (MODELS, (HOST, CLOSE, "Authorization: Bearer", "X-Api-Key: sk-"), 401),
        *((f"GET /v1/models?{name}=sk-one HTTP/1.1", (HOST, CLOSE), 401) for name in PLACES),
        *((MODELS, (HOST, CLOSE, f"Cookie: {name}=sk-one"), 401) for name in PLACES),
        # hosts
        *((HEALTH, (f"Host: {name}", CLOSE), 200) for name in OWN_NAMES),
        *((HEALTH, (f"Host: {name}", CLOSE), 403) for name in OTHER_NAMES),
        (MODELS, (HOST, CLOSE, *FORWARDED), 401),
        (MODELS, ("Host: evil.example", CLOSE, *FORWARDED), 403),
        # other spellings of a path
        ("GET //v1/models HTTP/1.1", (HOST, CLOSE), 401),
        ("GET /v1/../v1/models HTTP/1.1", (HOST, CLOSE), 401),
        ("GET /%76%31/models HTTP/1.1", (HOST, CLOSE), 401),
        ("GET /health/../v1/models HTTP/1.1", (HOST, CLOSE), 401),
        ("GET /v1/models/ HTTP/1.1", (HOST, CLOSE), 401),
        # other methods
        *((f"{method} /v1/models HTTP/1.1", (HOST, CLOSE), 401) for method in METHODS),
        ("OPTIONS /v1/models HTTP/1.1", (HOST, CLOSE), 405),
        # upgrades, which are not followed
        (HEALTH, (*UPGRADE, "Upgrade: h2c", "Sec-WebSocket-Key: x"), 200),
        (HEALTH, (*UPGRADE, "Upgrade: websocket", HANDSHAKE), 200),
        (MODELS, (*UPGRADE, "Upgrade: websocket", HANDSHAKE), 401),
    ],
)
def test_no_request_avoids_the_guard(
    server: LiveServer, line: str, headers: tuple[str, ...], status: int
) -> None:
    request = "\r\n".join([line, *headers, "", ""])
    assert statuses(answer(server, request)) == [status]

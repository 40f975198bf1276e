"""Who may call, and within which limits."""

import http.client
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tests.server.live import LiveServer, serving_fp32, wait_until

from ortolan.server.security import LOCAL_HOSTS

KEY = "sk-ünique"  # not ASCII on purpose
BODY = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}


@pytest.fixture(scope="module")
def guarded(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    with serving_fp32(
        bundles,
        keys=frozenset({"sk-other", KEY}),
        hosts=LOCAL_HOSTS,
        origins=("https://good.example",),
        max_body_bytes=10_000,
        body_timeout_s=0.5,
    ) as running:
        yield running


@pytest.fixture
def caller(guarded: LiveServer) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer sk-other"}
    with guarded.client(headers=headers) as client:
        yield client


def test_a_wrong_key_is_an_error_of_authentication(guarded: LiveServer) -> None:
    response = guarded.call("GET", "/v1/models", headers={"authorization": "Bearer wrong"})
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"


def test_a_key_need_not_be_ascii(guarded: LiveServer) -> None:
    headers = {b"authorization": f"Bearer {KEY}".encode()}
    assert guarded.call("GET", "/v1/models", headers=headers).status_code == 200


def test_pages_of_other_origins_may_not_call(caller: httpx2.Client, guarded: LiveServer) -> None:
    for origin, status in (
        ("https://evil.example", 403),
        ("null", 403),
        ("file://", 403),
        ("https://good.example", 200),
        (guarded.url, 200),
    ):
        response = caller.get("/v1/models", headers={"origin": origin})
        assert response.status_code == status, origin
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == ("https://good.example" if "good" in origin else None)


def test_a_preflight_allows_any_header_of_an_allowed_page(guarded: LiveServer) -> None:
    headers = {
        "origin": "https://good.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-lang,x-my-own",
    }
    response = guarded.call("OPTIONS", "/v1/chat/completions", headers=headers)
    assert response.status_code == 200
    assert "credentials" not in " ".join(response.headers)
    assert "x-my-own" in response.headers["access-control-allow-headers"]
    evil = {**headers, "origin": "https://evil.example"}
    response = guarded.call("OPTIONS", "/v1/chat/completions", headers=evil)
    assert response.status_code == 400
    assert "access-control-allow-origin" not in response.headers


def test_a_form_of_another_page_is_no_request(caller: httpx2.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = caller.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": kind}
        )
        assert response.status_code == 415


@pytest.mark.parametrize(
    "path",
    ["/../settings.py", "/%2e%2e/settings.py", "/..%2f..%2fapp.py", "//etc/passwd", "/%00"],
)
def test_no_file_outside_of_the_page(guarded: LiveServer, path: str) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", guarded.port)) as connection:
        connection.request("GET", path, headers={"Authorization": "Bearer sk-other"})
        response = connection.getresponse()
        assert response.status in (400, 404)
        assert b"root:" not in response.read()


def test_large_bodies_are_rejected(caller: httpx2.Client) -> None:
    response = caller.post("/v1/completions", json={"prompt": "x" * 20_000})
    assert response.status_code == 413

    def parts() -> Iterator[bytes]:  # chunked: without a length
        for _ in range(20):
            yield b"x" * 1_000

    response = caller.post(
        "/v1/completions", content=parts(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


def test_slow_bodies_end(guarded: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer sk-other\r\nContent-Type: application/json\r\n\r\n{"
        )
        connection.settimeout(60)
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_the_log_has_one_line_per_request(
    guarded: LiveServer, caller: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: not guarded.tasks)  # lines of earlier tests are written
    with caplog.at_level(logging.INFO, "ortolan.server.access"):
        caller.get("/%0a2026 admin logged in%1b[31m")
        caller.post("/v1/chat/completions", json={**BODY, "model": "a\nfake line"})
        caller.post("/v1/chat/completions", json=BODY)
        wait_until(lambda: len(caplog.records) >= 3)  # it is written afterwards
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert not any(character in line for line in lines for character in "\n\r\x1b")
    assert "Hi." not in "".join(lines)
    assert "new_tokens=2" in lines[-1]


def test_responses_forbid_sniffing_and_frames(caller: httpx2.Client) -> None:
    for path in ("/", "/v1/models", "/nothing", "/v1/models/a%0d%0aset-cookie:%20x=1"):
        headers = caller.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert not {"server", "set-cookie"} & set(headers)


def test_no_url_of_a_message_is_read(caller: httpx2.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        part = {"type": "image_url", "image_url": {"url": url}}
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
        assert caller.post("/v1/chat/completions", json=body).status_code == 400
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_compressed_body_is_rejected_as_such(caller: httpx2.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = caller.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 415
    error = response.json()["error"]
    assert error["code"] == "content-encoding"
    assert "gzip" in error["message"]


def test_a_request_keeps_its_id(caller: httpx2.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ortolan.server.access"):
        response = caller.get("/v1/models", headers={"x-request-id": "abc-1"})
        wait_until(lambda: "id=abc-1" in caplog.text)  # it is written afterwards
    assert response.headers["x-request-id"] == "abc-1"
    own = [
        caller.get("/v1/models", headers={"x-request-id": given}).headers["x-request-id"]
        for given in ("", "a b", "x" * 200)
    ]
    assert len({*own, "", "a b", "x" * 200}) == 6

"""Posts bodies, and reads answers, refusals and server-sent events."""

import json
from typing import Any

import httpx2

MODEL = {"model": "fp32"}


def post_ok(client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
    """The answer to a body that is accepted."""
    response = client.post(path, json={**MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: httpx2.Client, path: str, body: Any, status: int = 400) -> Any:
    """The error of a body that is not; bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps({**MODEL, **body}).encode()
    response = client.post(path, content=data, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error


def post_stream(client: httpx2.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of all events; text that is not JSON stays text."""
    with client.stream("POST", path, json={**MODEL, **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(text) if text.startswith("{") else text for text in data]


def chunks(client: httpx2.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, without the last one, which says that it is done."""
    *events, last = post_stream(client, path, body)
    assert last == "[DONE]"
    return events

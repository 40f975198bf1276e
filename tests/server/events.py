"""Reads server-sent events."""

import json
from typing import Any

import httpx2

__all__ = ["post_stream"]


def post_stream(client: httpx2.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of all events; text that is not JSON stays text."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(text) if text.startswith("{") else text for text in data]

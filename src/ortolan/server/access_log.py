"""A log line and headers for each request, without prompts unless the settings ask for them."""

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ortolan.server.call import Call

log = logging.getLogger("ortolan.server.access")

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class AccessLog:
    """ASGI middleware that logs method, path, status, time and what the call noted.

    It also adds `HEADERS`.

    Text from clients and models is escaped, so a line stays a line. Each request has an id, that of
    its header `X-Request-Id` or a new one, in the log and in the answer.
    """

    def __init__(self, app: App, *, log_prompts: bool = False) -> None:
        self._app = app
        self._log_prompts = log_prompts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, and log its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status = 0
        request_id = _request_id(scope)

        async def noting_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            seconds = time.monotonic() - start
            self._log(scope, status, seconds, request_id.decode())

    def _log(
        self, scope: MutableMapping[str, Any], status: int, seconds: float, request_id: str
    ) -> None:
        call: Call | None = scope.get("state", {}).get("call")
        notes = {**({} if call is None else call.notes), "id": request_id}
        log.info(
            "%s %s %s %.3f s%s%s",
            scope["method"],
            _escaped(scope["path"]),
            status or "-",
            seconds,
            "".join(f" {name}={_escaped(str(value))}" for name, value in notes.items()),
            _texts(call) if call is not None and self._log_prompts else "",
        )


def _request_id(scope: MutableMapping[str, Any]) -> bytes:
    """The id that a client or proxy chose, if it is short and plain, or a new one."""
    given: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
    return given if re.fullmatch(rb"[\w.:-]{1,128}", given) else secrets.token_hex(12).encode()


def _texts(call: Call) -> str:
    """The body of a request and its generated texts, quoted, with control characters escaped."""
    named = [("body", call.body.decode(errors="replace"))] if call.body else []
    named += [("answer", text) for text in call.texts()]
    return "".join(f" {name}={text!r}" for name, text in named)


def _escaped(text: str) -> str:
    """Text on one line without control characters or spaces."""
    return text[:200].encode("unicode_escape").decode().replace(" ", "\\x20")

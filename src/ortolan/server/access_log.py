"""A log line and headers for each request, without prompts unless the settings ask for them."""

import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortolan.server.call import Call

log = logging.getLogger("ortolan.server.access")

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""


class AccessLog:
    """ASGI middleware that logs method, path, status, time and what the call noted.

    It also adds `HEADERS`. Text from clients and models is escaped, so a line stays a line. Each
    request has an id, that of its header `X-Request-Id` or a new one, in the log and in the answer.
    """

    def __init__(self, app: ASGIApp, *, log_prompts: bool = False) -> None:
        self._app = app
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status = 0
        # the id that a client or proxy chose, if it is short and plain
        request_id: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
        if not re.fullmatch(rb"[\w.:-]{1,128}", request_id):
            request_id = secrets.token_hex(12).encode()

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            call: Call | None = scope.get("state", {}).get("call")
            notes = {**({} if call is None else call.notes), "id": request_id.decode()}
            log.info(
                "%s %s %s %.3f s%s%s",
                scope["method"],
                _escaped(scope["path"]),
                status or "-",
                time.monotonic() - start,
                "".join(f" {name}={_escaped(str(value))}" for name, value in notes.items()),
                _texts(call) if call is not None and self._log_prompts else "",
            )


def _texts(call: Call) -> str:
    """The body of a request and its generated texts, quoted, with control characters escaped."""
    named = [("body", call.body.decode(errors="replace"))] if call.body else []
    named += [("answer", text) for text in call.texts()]
    return "".join(f" {name}={text!r}" for name, text in named)


def _escaped(text: str) -> str:
    """Text on one line without control characters or spaces."""
    return text[:200].encode("unicode_escape").decode().replace(" ", "\\x20")

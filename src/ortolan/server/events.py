"""Server-sent events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Send

from ortolan.server.errors import ApiError, error_body

DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""

KEEP_ALIVE = b": waiting\n\n"
"""A comment, so that proxies do not close a connection during a long prompt."""

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment is sent."""


E = TypeVar("E")


class EventStream(StreamingResponse, Generic[E]):
    """A response of events of a structure, with comments while there are none.

    It starts with the first event or comment, so that earlier errors have their own status.

    Args:
        events: encoded.
        failed: returns the last events after an error.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        failed: Callable[[ApiError], bytes] = lambda error: event(error_body(error)),
    ) -> None:
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.has_started = self.is_complete = False
        self._failed = failed
        self._is_quiet = True

    async def stream_response(self, send: Send) -> None:
        """Send all events."""
        comments = asyncio.create_task(self._keep_alive(send))
        try:
            async for data in self.body_iterator:
                self._is_quiet = False
                await self._send(data, send)
            await self._send(DONE, send, is_last=True)
            self.is_complete = True
        finally:
            comments.cancel()

    async def fail(self, error: ApiError, send: Send) -> None:
        """End with an error."""
        await self._send(self._failed(error), send, is_last=True)

    async def _keep_alive(self, send: Send) -> None:
        """One task for all events: a timeout for each would cost as much as the event."""
        while True:
            self._is_quiet = True
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._is_quiet:
                await self._send(KEEP_ALIVE, send)

    async def _send(self, data: Any, send: Send, *, is_last: bool = False) -> None:
        if not self.has_started:
            self.has_started = True
            headers = self.raw_headers
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})


def event(data: Any, *, name: str | None = None) -> bytes:
    """Encode an event. JSON has no line breaks, so one line holds it."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"

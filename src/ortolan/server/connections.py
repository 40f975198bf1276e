"""uvicorn's protocol with limits on time, which alone waits for slow clients forever."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT_S = 10.0
"""Maximum time for the headers of a request to arrive, and for a client to read nothing more."""

MAX_CONNECTIONS = 512
"""Maximum number of open connections; requests on further ones get a 503.

Half of the file descriptors that a process usually may open.
"""


class HttpConnection(H11Protocol):
    """A connection that is closed if it has no request, or if its client does not read."""

    _timer: asyncio.TimerHandle | None = None
    _unsent = -1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._app, self.app = self.app, self._run

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application. Chunks of streams bypass h11, which costs as much as writing one."""
        cycle, is_chunked = self.cycle, False

        async def send_chunk(message: Any) -> None:
            nonlocal is_chunked
            if is_chunked and message.get("more_body") and not cycle.flow.write_paused:
                body = message["body"]
                if body and not cycle.disconnected:
                    self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
                return
            await send(message)
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message["headers"])
                may_chunk = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
                is_chunked = may_chunk and not has_length

        await self._app(scope, receive, send_chunk)

    def connection_made(self, transport: Any) -> None:
        """Start the timer; abort a connection that is far too many."""
        super().connection_made(transport)
        if len(self.connections) > 2 * MAX_CONNECTIONS:
            transport.abort()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._disarm()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the timer for the next request."""
        super().on_response_complete()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._check)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close a connection without a request; abort one that is closing and does not get on."""
        if self.transport.is_closing():
            before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
            if self._unsent == before:
                self.transport.abort()
                return
        elif self.conn.their_state is h11.IDLE:
            self.transport.close()
        self._arm()

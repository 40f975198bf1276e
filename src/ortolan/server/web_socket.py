"""Runs a conversation over a WebSocket: one message is a request, its answer several messages.

Source: https://www.openresponses.org/specification (WebSocket transport)
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import MutableMapping
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from ortolan.server.access_log import log_call
from ortolan.server.call import Call
from ortolan.server.endpoints import Socket
from ortolan.server.errors import ApiError, api_error, error_body
from ortolan.server.http import (
    STOPPED,
    ClientGoneError,
    OutOfTimeError,
    error_response,
    finished,
    out_of_time,
)
from ortolan.server.models import Models
from ortolan.server.settings import Settings
from ortolan.server.store import Store

__all__ = ["SLOW", "STOP", "SocketApp"]

log = logging.getLogger("ortolan.server")

MAX_SOCKETS = 256
"""Maximum number of open WebSockets. They stay open while idle, so requests keep as many."""

MAX_AGE_S = 3600.0
"""Age at which a WebSocket accepts no further turn."""

MAX_WAITING = 8
"""Maximum number of messages that wait for the running turn."""

SLOW = "ortolan.slow"
"""Type of the message that reports that the rest of a client's message did not arrive in time."""

STOP = "stop"
"""Key of the scope's state with a function that ends the connection after its running turn."""

POLICY, TOO_BUSY, RESTART = 1008, 1013, 1012
"""Codes that close a WebSocket (RFC 6455 and its registry)."""


class _ClosingError(Exception):
    """Why the server closes a connection."""

    def __init__(self, code: int, error: ApiError | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.error = error


class SocketApp:
    """ASGI application of one path with WebSockets.

    Turns of a connection run one after the other. If the client disconnects or the time is up, the
    handler's task is cancelled, and with it the tickets of the call.
    """

    def __init__(self, socket: Socket, models: Models, store: Store, settings: Settings) -> None:
        self._socket = socket
        self._models = models
        self._store = store
        self._settings = settings
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept a connection, answer its messages, and close it."""
        await receive()  # websocket.connect
        if self._open >= MAX_SOCKETS:
            await error_response(_TOO_MANY)(scope, receive, send)
            return
        self._open += 1
        inbox = _Inbox(receive, self._settings.max_body_bytes)
        scope.setdefault("state", {})[STOP] = inbox.stop
        reading = asyncio.ensure_future(inbox.read())
        reading.add_done_callback(lambda _: inbox.wake())
        send = _checked(send)
        try:
            with suppress(ClientGoneError):
                await self._accepted(scope, inbox, reading, send)
        finally:
            self._open -= 1
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _accepted(
        self, scope: Scope, inbox: "_Inbox", reading: "asyncio.Task[None]", send: Send
    ) -> None:
        """Accept a connection and answer its messages; close it if the server has a reason.

        Raises:
            ClientGoneError: the client closed it.
        """
        try:
            await send({"type": "websocket.accept"})
            await self._turns(scope, inbox, reading, send)
        except _ClosingError as reason:
            closing = reason
        except asyncio.CancelledError:  # only the end of the server cancels this task
            closing = _ClosingError(RESTART, STOPPED)
        if closing.error is not None:
            await send(_failure(closing.error))
        await send({"type": "websocket.close", "code": closing.code})

    async def _turns(
        self, scope: Scope, inbox: "_Inbox", reading: "asyncio.Task[None]", send: Send
    ) -> None:
        """Answer messages until the connection ends.

        Raises:
            _ClosingError: the server should close it.
            ClientGoneError: the client closed it.
        """
        recent = Store(max_entries=1, max_bytes=2 * self._settings.max_body_bytes)
        until = time.monotonic() + MAX_AGE_S
        while True:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    data = await inbox.get(reading)
            except TimeoutError:
                raise _ClosingError(POLICY, _TOO_OLD) from None
            call = Call(path={}, models=self._models, store=self._store, recent=recent)
            if self._settings.log_prompts:
                call.body = data
            start = time.monotonic()
            status = 0
            try:
                status = await self._turn(call, data, reading, send)
            finally:
                log_call(
                    f"WEBSOCKET {scope['path']}",
                    status,
                    time.monotonic() - start,
                    call,
                    with_texts=self._settings.log_prompts,
                )

    async def _turn(
        self, call: Call, data: bytes, reading: "asyncio.Task[None]", send: Send
    ) -> int:
        """Answer one message. Returns the status of the turn."""
        work = asyncio.ensure_future(self._answer(call, data, send))
        try:
            await finished(work, reading, self._settings.request_timeout_s)
        except OutOfTimeError:
            call.notes["ended"] = "timeout"
            error = out_of_time(self._settings.request_timeout_s)
        except ClientGoneError:
            call.notes["ended"] = "disconnected"
            if reading.done():
                reading.result()  # a client that broke a rule is told
            raise
        except asyncio.CancelledError:
            call.notes["ended"] = "stopped"
            raise
        except Exception as exception:
            error = api_error(exception)
            if error.code == "bug":
                log.exception("bug while answering a message of %s", self._socket.path)
        else:
            return 200
        await send(_failure(error))
        return error.status

    async def _answer(self, call: Call, data: bytes, send: Send) -> None:
        if len(data) > self._settings.max_body_bytes:
            raise _too_large(self._settings.max_body_bytes)
        messages = self._socket.handler(call, data)
        async with call, aclosing(messages):
            async for message in messages:
                await send({"type": "websocket.send", "text": message.decode()})


class _Inbox:
    """Messages of a client that wait for their turn.

    They are read at once, because only reading tells that the client has left.

    Args:
        receive: of ASGI.
        most: maximum size of all waiting messages, apart from the newest.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_stopping = False

    async def read(self) -> None:
        """Read messages until the client disconnects.

        Raises:
            _ClosingError: too many messages wait, or one did not arrive in time.
        """
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == SLOW:
                raise _ClosingError(POLICY, _TOO_SLOW)
            if len(self._waiting) >= MAX_WAITING or sum(map(len, self._waiting)) > self._most:
                raise _ClosingError(TOO_BUSY, _TOO_MANY_WAIT)
            self._waiting.append(message.get("bytes") or (message.get("text") or "").encode())
            self.wake()

    async def get(self, reading: "asyncio.Task[None]") -> bytes:
        """Wait for the next message.

        Raises:
            _ClosingError: the connection should end.
            ClientGoneError: the client closed it.
        """
        while not (self._waiting or self._is_stopping or reading.done()):
            self._changed.clear()
            await self._changed.wait()
        if self._is_stopping:
            raise _ClosingError(RESTART)
        if reading.done():
            reading.result()
            raise ClientGoneError
        return self._waiting.popleft()

    def stop(self) -> None:
        """Let no further turn begin."""
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        """Let `get` look again."""
        self._changed.set()


def _checked(send: Send) -> Send:
    """Send messages; raise ClientGoneError if the connection is closed."""

    async def checked(message: MutableMapping[str, Any]) -> None:
        try:
            await send(message)
        except OSError as error:
            raise ClientGoneError from error

    return checked


def _failure(error: ApiError) -> MutableMapping[str, Any]:
    """The message of an error; what HTTP says in headers is part of it."""
    body = {"type": "error", "status": error.status, **error_body(error)}
    if error.headers:
        body["headers"] = dict(error.headers)
    return {"type": "websocket.send", "text": msgspec.json.encode(body).decode()}


def _too_large(most: int) -> ApiError:
    return ApiError(
        status=413, message=f"A message must have at most {most} bytes.", code="body-size"
    )


_TOO_MANY = ApiError(
    status=503,
    message=f"The server has {MAX_SOCKETS} WebSockets open. Use POST, or try again.",
    type="server_error",
    code="too-many-connections",
    headers={"retry-after": "1"},
)
_TOO_MANY_WAIT = ApiError(
    status=429,
    message="Too many messages wait: a connection answers one at a time. Wait for the response, "
    "or open several connections.",
    type="rate_limit_error",
    code="too-many-messages",
)
_TOO_OLD = ApiError(
    status=400,
    message=f"The connection is older than {MAX_AGE_S / 60:g} minutes. Open a new one.",
    code="websocket_connection_limit_reached",
)
_TOO_SLOW = ApiError(
    status=408, message="The rest of a message did not arrive in time.", code="body-timeout"
)

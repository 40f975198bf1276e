"""Runs an endpoint: reads the body, watches the connection, sends the answer."""

import asyncio
import logging
from collections.abc import Awaitable, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from ortolan.runtime.errors import shown
from ortolan.server.body_decoder import BodyDecoder
from ortolan.server.call import Call
from ortolan.server.endpoints import JSON, Answer, Endpoint, Text
from ortolan.server.errors import ApiError, api_error, error_body
from ortolan.server.events import KEEP_ALIVE, EventStream, event
from ortolan.server.forms import FORM, check_parts, form_fields
from ortolan.server.models import Models
from ortolan.server.settings import Settings
from ortolan.server.store import Store

log = logging.getLogger("ortolan.server")

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment is sent."""

Scope = MutableMapping[str, Any]
Receive = Any
Send = Any


class ClientGoneError(Exception):
    """The client closed the connection, or does not read."""


class OutOfTimeError(Exception):
    """The time for a request is up."""


class EndpointApp:
    """ASGI application of one endpoint.

    If the client disconnects or the time is up, the handler's task is cancelled, and with it the
    tickets of the call.
    """

    def __init__(
        self, endpoint: Endpoint, models: Models, store: Store, settings: Settings
    ) -> None:
        self._endpoint = endpoint
        self._models = models
        self._store = store
        self._settings = settings
        self._decoder = None if endpoint.body is None else BodyDecoder(endpoint.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        reply = _Reply(send, self._settings.write_timeout_s)
        call = Call(
            path=scope.get("path_params", {}),
            query=QueryParams(scope["query_string"]),
            models=self._models,
            store=self._store,
        )
        scope.setdefault("state", {})["call"] = call
        try:
            body = await self._read(call, scope, receive)
            await self._watch(asyncio.ensure_future(self._answer(call, body, reply)), receive)
        except ClientGoneError:
            call.notes["ended"] = "disconnected"
        except OutOfTimeError:
            call.notes["ended"] = "timeout"
            await reply.fail(out_of_time(self._settings.request_timeout_s))
        except asyncio.CancelledError:  # only the end of the server cancels this task
            call.notes["ended"] = "stopped"
            await reply.fail(STOPPED)
        except Exception as error:
            failure = api_error(error)
            if failure.code == "bug":
                log.exception("bug while answering %s", self._endpoint.path)
            await reply.fail(failure)

    async def _watch(self, work: "asyncio.Task[None]", receive: Receive) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await finished(work, gone, self._settings.request_timeout_s)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _answer(self, call: Call, body: Any, reply: "_Reply") -> None:
        async with call:
            answer = await self._endpoint.handler(call, body)
            await reply.send(answer)

    async def _read(self, call: Call, scope: Scope, receive: Receive) -> Any:
        """Decode the body."""
        if self._decoder is None:
            return None
        headers = dict(scope["headers"])
        content_type, expected = headers.get(b"content-type", b""), self._endpoint.media_type
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if encoding.strip().lower() != "identity":
            raise ApiError(
                status=415,
                message=f"Send the body without Content-Encoding (got {shown(encoding)}).",
                code="content-encoding",
                headers={"accept-encoding": "identity"},
            )
        media_type = content_type.split(b";")[0].strip().lower().decode("latin-1")
        if media_type != expected:
            what = "JSON" if expected == JSON else "a form"
            raise ApiError(
                status=415,
                message=f"Send {what} with the header Content-Type: {expected} "
                f"(got {shown(media_type)}).",
                code="media-type",
            )
        settings = self._settings
        most = settings.max_form_bytes if expected == FORM else settings.max_body_bytes
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                data = await _body(headers, receive, most)
        except TimeoutError:
            raise ApiError(
                status=408,
                message=f"The body did not arrive within {self._settings.body_timeout_s:g} s.",
                code="body-timeout",
                headers={"connection": "close"},
            ) from None
        if expected == FORM:
            fields = await form_fields(data, content_type)
            return msgspec.convert(fields, self._endpoint.body, strict=False)
        if self._settings.log_prompts:
            call.body = data
        check_parts(data)
        return self._decoder.decode(data)


async def finished(
    work: "asyncio.Task[None]", gone: "asyncio.Task[None]", timeout_s: float
) -> None:
    """Wait for an answer to be sent; cancel it if that is pointless."""
    try:
        done, _ = await asyncio.wait(
            {work, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    if not work.cancelled():
        work.result()
    else:
        raise ClientGoneError if done else OutOfTimeError


class _Reply:
    """Sends one answer, or an error."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._raw_send = send
        self._timeout_s = timeout_s
        self._has_started = False
        self._is_stream = False
        self._is_stuck = False
        self._loop = asyncio.get_running_loop()
        self._wrote_at = self._loop.time()
        self._lock = asyncio.Lock()

    async def send(self, answer: Answer) -> None:
        """Send an answer."""
        match answer:
            case EventStream():
                await self._stream(answer)
            case Text():
                await self._whole(200, answer.text.encode(), answer.media_type)
            case _:
                await self._whole(200, msgspec.json.encode(answer), "application/json")

    async def fail(self, error: ApiError) -> None:
        """Send an error; inside a stream, as its last event."""
        with suppress(ClientGoneError):
            if self._is_stream:
                last = _body_part(event(error_body(error)), is_last=True)
                await self._limited(self._write(last))
            elif not self._has_started:
                await self._respond(error_response(error))

    async def _whole(self, status: int, body: bytes, media_type: str) -> None:
        await self._respond(Response(body, status, media_type=media_type))

    async def _respond(self, response: Response) -> None:
        self._has_started = True
        await self._limited(response({"type": "http"}, _never, self._write))

    async def _limited(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await sending
        except TimeoutError as error:
            raise ClientGoneError from error

    async def _stream(self, answer: EventStream) -> None:
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.ensure_future(self._watch(task))
        try:
            async for data in answer.events:
                if not self._is_stream:  # not earlier: early errors have their own status
                    await self._start()
                await self._write(_body_part(data))
            if not self._is_stream:
                await self._start()
            await self._write(_body_part(answer.last, is_last=True))
            self._is_stream = False
        except asyncio.CancelledError:
            if not self._is_stuck:
                raise
            task.uncancel()
            raise ClientGoneError from None
        finally:
            watch.cancel()

    async def _start(self) -> None:
        self._has_started = self._is_stream = True
        start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
        await self._write(start)

    async def _watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a stream whose client does not read, and send comments while it has no news.

        One task for all events: a timeout for each would cost as much as the event.
        """
        pause_s = min(KEEP_ALIVE_S, self._timeout_s)
        while True:
            await asyncio.sleep(pause_s)
            idle_s = self._loop.time() - self._wrote_at
            if self._lock.locked():
                if idle_s >= self._timeout_s:
                    self._is_stuck = True
                    task.cancel()
                    return
            elif idle_s >= pause_s:
                with suppress(ClientGoneError):  # the stream will see it, too
                    if not self._is_stream:
                        await self._start()
                    await self._write(_body_part(KEEP_ALIVE))

    async def _write(self, message: MutableMapping[str, Any]) -> None:
        async with self._lock:
            self._wrote_at = self._loop.time()
            try:
                await self._raw_send(message)
            except OSError as error:
                raise ClientGoneError from error


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def _body_part(data: bytes, *, is_last: bool = False) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


def error_response(error: ApiError) -> Response:
    """The response of an error."""
    return Response(
        msgspec.json.encode(error_body(error)),
        error.status,
        headers=dict(error.headers),
        media_type="application/json",
    )


async def _body(headers: dict[bytes, bytes], receive: Receive, most: int) -> bytes:
    too_large = ApiError(
        status=413,
        message=f"The body must have at most {most} bytes.",
        code="body-size",
        headers={"connection": "close"},
    )
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise too_large
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Any:
    raise RuntimeError("responses do not read the request")


def out_of_time(seconds: float) -> ApiError:
    """The error of a request that takes too long."""
    return ApiError(
        status=504,
        message=f"The request took longer than {seconds:g} s. Ask for fewer tokens.",
        type="server_error",
        code="request-timeout",
        headers={"x-should-retry": "false"},
    )


STOPPED = ApiError(
    status=503,
    message="The server is stopping. Send the request again.",
    type="server_error",
    code="stopping",
    headers={"connection": "close", "retry-after": "1"},
)
"""The error of a request that the end of the server cuts short."""

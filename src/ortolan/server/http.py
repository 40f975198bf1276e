"""Runs an endpoint: reads the body, watches the connection, sends the answer."""

import asyncio
import logging
from collections.abc import Coroutine, MutableMapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ortolan.runtime.errors import shown
from ortolan.server.body_decoder import BodyDecoder
from ortolan.server.call import Call
from ortolan.server.endpoints import JSON, Answer, Endpoint
from ortolan.server.errors import ApiError, api_error, error_response
from ortolan.server.events import EventStream
from ortolan.server.forms import FORM, check_parts, form_fields
from ortolan.server.models import Models
from ortolan.server.settings import Settings
from ortolan.server.store import Store

log = logging.getLogger("ortolan.server")

T = TypeVar("T")


class EndpointApp:
    """ASGI application of one endpoint.

    If the client disconnects or the time is up, the handler or the stream is cancelled, and with it
    the tickets of the call.
    """

    def __init__(
        self, endpoint: Endpoint, models: Models, store: Store, settings: Settings
    ) -> None:
        self._endpoint = endpoint
        self._models = models
        self._store = store
        self._settings = settings
        self._decoder = None if endpoint.body is None else BodyDecoder(endpoint.body)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        call = Call(
            path=request.path_params,
            query=request.query_params,
            models=self._models,
            store=self._store,
        )
        request.state.call = call
        response: Response | None = None
        try:
            async with asyncio.timeout(self._settings.request_timeout_s), call:
                body = await self._read(call, request)
                answer = await _unless_gone(self._endpoint.handler(call, body), receive)
                response = _response(answer)
                await response(scope, receive, send)
            if isinstance(response, EventStream) and not response.is_complete:
                call.notes["ended"] = "disconnected"
            return
        except ClientDisconnect:
            call.notes["ended"] = "disconnected"
            return
        except TimeoutError:
            call.notes["ended"] = "timeout"
            failure = out_of_time(self._settings.request_timeout_s)
        except asyncio.CancelledError:  # only the end of the server cancels this task
            call.notes["ended"] = "stopped"
            failure = STOPPED
        except Exception as error:
            failure = api_error(error)
            if failure.code == "bug":
                log.exception("bug while answering %s", self._endpoint.path)
        if isinstance(response, EventStream) and response.has_started:
            await response.fail(failure, send)
        elif response is None or isinstance(response, EventStream):
            await error_response(failure)(scope, receive, send)

    async def _read(self, call: Call, request: Request) -> Any:
        """Decode the body."""
        if self._decoder is None:
            return None
        expected = self._endpoint.media_type
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise ApiError(
                f"Send the body without Content-Encoding (got {shown(encoding)}).",
                code="content-encoding",
                headers={"accept-encoding": "identity"},
                status=415,
            )
        content_type = request.headers.get("content-type", "")
        media_type = content_type.split(";")[0].strip().lower()
        if media_type != expected:
            what = "JSON" if expected == JSON else "a form"
            raise ApiError(
                f"Send {what} with the header Content-Type: {expected} (got {shown(media_type)}).",
                code="media-type",
                status=415,
            )
        settings = self._settings
        most = settings.max_form_bytes if expected == FORM else settings.max_body_bytes
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                data = await _body(request, most)
        except TimeoutError:
            raise ApiError(
                f"The body did not arrive within {settings.body_timeout_s:g} s.",
                code="body-timeout",
                headers={"connection": "close"},
                status=408,
            ) from None
        if expected == FORM:
            fields = await form_fields(data, content_type.encode("latin-1"))
            return msgspec.convert(fields, self._endpoint.body, strict=False)
        if settings.log_prompts:
            call.body = data
        check_parts(data)
        return self._decoder.decode(data)


def _response(answer: Answer) -> Response:
    if isinstance(answer, Response):
        return answer
    return Response(msgspec.json.encode(answer), media_type=JSON)


async def _body(request: Request, most: int) -> bytes:
    too_large = ApiError(
        f"The body must have at most {most} bytes.",
        code="body-size",
        headers={"connection": "close"},
        status=413,
    )
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise too_large
    return bytes(data)


async def _unless_gone(work: Coroutine[Any, Any, T], receive: Any) -> T:
    """Wait for a result, or cancel it when the client has closed the connection."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def out_of_time(seconds: float) -> ApiError:
    """The error of a request that takes too long."""
    return ApiError(
        f"The request took longer than {seconds:g} s. Ask for fewer tokens.",
        type="server_error",
        code="request-timeout",
        headers={"x-should-retry": "false"},
        status=504,
    )


STOPPED = ApiError(
    "The server is stopping. Send the request again.",
    type="server_error",
    code="stopping",
    headers={"connection": "close", "retry-after": "1"},
    status=503,
)
"""The error of a request that the end of the server cuts short."""

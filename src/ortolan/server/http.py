"""`Endpoint`: a route as data, and the application that answers its requests."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ortolan.server.body_reader import BodyReader
from ortolan.server.call import Call
from ortolan.server.errors import JSON, ApiError, api_error, error_response
from ortolan.server.events import EventStream
from ortolan.server.models import Models
from ortolan.server.settings import Settings
from ortolan.server.store import Store

log = logging.getLogger("ortolan.server")

T = TypeVar("T")

Answer = msgspec.Struct | dict[str, Any] | Response
"""Result of a handler; what is no response is sent as JSON."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route. Its structures are those of the handler's annotations.

    Attributes:
        path: of the route, with `{name}` for a parameter.
        handler: answers a call, with its body if it has one.
        media_type: of the body.
        is_open: whether the endpoint needs no key.
    """

    method: str
    path: str
    handler: Callable[..., Coroutine[Any, Any, Any]]
    media_type: str = JSON
    is_open: bool = False

    @property
    def body(self) -> type[msgspec.Struct] | None:
        """Structure of the body, if there is one."""
        return get_type_hints(self.handler).get("body")

    @property
    def answer(self) -> type[msgspec.Struct] | None:
        """Structure of the answer; `None` for free JSON or text."""
        return next(
            (a for a in self._answers if isinstance(a, type) and issubclass(a, msgspec.Struct)),
            None,
        )

    @property
    def event(self) -> type[msgspec.Struct] | None:
        """Structure of the events, if the endpoint can stream."""
        return next((get_args(a)[0] for a in self._answers if get_origin(a) is EventStream), None)

    @property
    def _answers(self) -> tuple[Any, ...]:
        answer = get_type_hints(self.handler)["return"]
        return get_args(answer) if get_origin(answer) in (Union, UnionType) else (answer,)


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
        self._timeout_s = settings.request_timeout_s
        self._keeps_body = settings.log_prompts and endpoint.media_type == JSON
        body = endpoint.body
        self._reader = None if body is None else BodyReader(body, endpoint.media_type, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        call = Call(request, self._models, self._store)
        request.state.call = call
        response: Response | None = None
        try:
            async with asyncio.timeout(self._timeout_s), call:
                work = await self._begun(call, request)
                answer = await _unless_gone(work, receive)
                if not isinstance(answer, Response):
                    answer = Response(msgspec.json.encode(answer), media_type=JSON)
                response = answer
                await response(scope, receive, send)
            if isinstance(response, EventStream) and not response.is_complete:
                call.notes["ended"] = "disconnected"
            return
        except ClientDisconnect:
            call.notes["ended"] = "disconnected"
            return
        except TimeoutError:
            call.notes["ended"] = "timeout"
            failure = ApiError(
                f"The request took longer than {self._timeout_s:g} s. Ask for fewer tokens.",
                code="request-timeout",
                headers={"x-should-retry": "false"},
                status=504,
            )
        except asyncio.CancelledError:  # only the end of the server cancels this task
            call.notes["ended"] = "stopped"
            failure = ApiError(
                "The server is stopping. Send the request again.",
                code="stopping",
                headers={"connection": "close", "retry-after": "1"},
                status=503,
            )
        except Exception as error:
            failure = api_error(error)
            if failure.code == "bug":
                log.exception("bug while answering %s", self._endpoint.path)
        if isinstance(response, EventStream) and response.has_started:
            await response.fail(failure, send)
        elif response is None or isinstance(response, EventStream):
            await error_response(failure)(scope, receive, send)

    async def _begun(self, call: Call, request: Request) -> Coroutine[Any, Any, Answer]:
        """Read the body, and begin to answer it."""
        if self._reader is None:
            return self._endpoint.handler(call)
        data = await self._reader.receive(request)
        if self._keeps_body:
            call.body = data
        body = await self._reader.decode(data, request.headers["content-type"])
        return self._endpoint.handler(call, body)


async def _unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
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


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

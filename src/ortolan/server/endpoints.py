"""`Endpoint`: a route as data, for the router, decoders and the OpenAPI document."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from ortolan.server.call import Call

JSON = "application/json"


Answer = msgspec.Struct | dict[str, Any] | Response
"""Result of a handler; what is no response is sent as JSON."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route.

    Attributes:
        path: of the route, with `{name}` for a parameter.
        media_type: of the body.
        answer: structure of the answer; `None` for free JSON or text.
        event: structure of the events, if the endpoint can stream.
        is_open: whether the endpoint needs no key.
    """

    method: str
    path: str
    handler: Callable[[Call, Any], Coroutine[Any, Any, Answer]]
    summary: str
    body: type[msgspec.Struct] | None = None
    media_type: str = JSON
    answer: type[msgspec.Struct] | None = None
    event: Any = None
    is_open: bool = False

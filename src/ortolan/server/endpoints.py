"""`Endpoint`: a route as data, for the router, decoders and the OpenAPI document."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ortolan.server.call import Call
from ortolan.server.events import EventStream

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A response that is not JSON.

    Attributes:
        text: body of the response.
        media_type: its media type.
    """

    text: str
    media_type: str


Answer = msgspec.Struct | EventStream | Text | dict[str, Any]
"""Result of a handler; a structure is sent as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A route.

    Attributes:
        method: HTTP method.
        path: path of the route, with `{name}` for a parameter.
        handler: computes the answer from a call and its decoded body.
        summary: one line for the documentation.
        body: structure of the body; `None` for a request without one.
        media_type: of the body.
        answer: structure of the answer; `None` for free JSON or text.
        event: structure of the events, if the endpoint can stream.
        is_open: whether the endpoint needs no key.
    """

    method: str
    path: str
    handler: Callable[[Call, Any], Awaitable[Answer]]
    summary: str
    body: type[msgspec.Struct] | None = None
    media_type: str = JSON
    answer: type[msgspec.Struct] | None = None
    event: Any = None
    is_open: bool = False

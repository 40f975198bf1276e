"""Turns on a WebSocket: each message asks for a response, which the next one may continue.

A connection remembers its last response, also with `store=false`.

Source: https://www.openresponses.org/specification (WebSocket transport)
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from ortolan.server.api.responses.body import ResponseBody
from ortolan.server.api.responses.create import start
from ortolan.server.body_decoder import BodyDecoder
from ortolan.server.call import Call
from ortolan.server.endpoints import Socket
from ortolan.server.errors import ApiError
from ortolan.server.forms import check_parts
from ortolan.server.store import Store

__all__ = ["SOCKET"]

_OF_HTTP = ("stream", "stream_options", "background")
"""Fields of the body that a message must not have."""


class CreateMessage(ResponseBody, kw_only=True, forbid_unknown_fields=True):
    """A message that asks for a response; see `ResponseBody`."""

    type: Literal["response.create"]

    def __post_init__(self) -> None:
        for name in _OF_HTTP:
            if getattr(self, name) is not None:
                raise ApiError(
                    status=400,
                    message=f"{name} has no meaning on a WebSocket. Leave it out.",
                    code="invalid-body",
                    param=name,
                )


class _Reference(msgspec.Struct, kw_only=True):
    """Reads one field of a message, whatever else it has."""

    previous_response_id: str | None = None


_decoder = BodyDecoder(CreateMessage)


async def respond(call: Call, data: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the events of the response that a message asks for.

    Raises:
        ApiError: the message is invalid.
        msgspec.DecodeError: it is no valid JSON, or of another structure.
        OrtolanError: the model rejects it, or the generation fails.
    """
    try:
        body = _decode(data)
        generation = await start(call, body, _stores(call, body))
        async for each in generation.events():
            yield msgspec.json.encode(each)
    except BaseException:
        _forget_previous(call, data)
        raise


def _decode(data: bytes) -> CreateMessage:
    check_parts(data)
    return _decoder.decode(data)


def _stores(call: Call, body: CreateMessage) -> Sequence[Store]:
    """Where the previous response may be: without `store`, only on this connection."""
    recent = [] if call.recent is None else [call.recent]
    return recent if body.store is False else [*recent, call.store]


def _forget_previous(call: Call, data: bytes) -> None:
    """Forget the response that a failed turn continues, as the specification demands."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        previous = msgspec.json.decode(data, type=_Reference).previous_response_id
        if previous is not None and call.recent is not None:
            call.recent.drop(previous)


SOCKET = Socket(path="/v1/responses", handler=respond)

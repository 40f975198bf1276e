"""Server-sent events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""

KEEP_ALIVE = b": waiting\n\n"
"""A comment, so that proxies do not close a connection during a long prompt."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """A response of events.

    Attributes:
        events: encoded events.
        last: bytes to send after them, unless they failed.
    """

    events: AsyncIterator[bytes]
    last: bytes = DONE


def event(data: Any, *, name: str | None = None) -> bytes:
    """Encode an event. JSON has no line breaks, so one line holds it."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"

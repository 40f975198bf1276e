"""Responses that are kept for `previous_response_id`."""

from typing import Any

import msgspec

from ortolan.server.api.responses.resource import Response
from ortolan.server.errors import ApiError
from ortolan.server.store import Store


class Stored(msgspec.Struct, kw_only=True):
    """A response in the store.

    Attributes:
        items: input and output, which the next response continues.
    """

    items: list[Any]
    response: Response


def read_items(
    value: str | list[dict[str, Any]] | None, previous: str | None, store: Store
) -> list[Any]:
    """Items of the previous response and of the body."""
    items = value or []
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    if previous is None:
        return items
    data = store.get(previous)
    if data is None:
        raise not_found(previous, status=400)
    return [*msgspec.json.decode(data, type=Stored).items, *items]


def not_found(response: str, *, status: int) -> ApiError:
    """Make the error for a response that is not stored."""
    return ApiError(
        f"There is no stored response {response[:100]!r}. Responses are kept in memory "
        "while there is room, if they are created with store=true.",
        code="previous_response_not_found" if status == 400 else "response_not_found",
        param="previous_response_id" if status == 400 else None,
        status=status,
    )

"""Submits chats, and reads their replies."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from ortolan.runtime import Completion, Piece, Reply, Ticket
from ortolan.runtime.chat.reply import reply_of
from ortolan.server.api.bodies import fitted
from ortolan.server.call import Call
from ortolan.server.models import ServedModel


async def submit_chat(
    call: Call,
    served: ServedModel,
    messages: Sequence[Any],
    options: dict[str, Any],
    *,
    n: int = 1,
) -> list[Ticket[Reply]]:
    """Submit a conversation `n` times."""
    return await call.submit(
        lambda: fitted(
            lambda most: served.service.chat(messages, n=n, **{**options, "max_new_tokens": most}),
            options["max_new_tokens"],
        )
    )


class SingleCall(AsyncIterator[Piece]):
    """The pieces of a reply that ends with its first call, and after them the reply."""

    def __init__(self, ticket: Ticket[Reply]) -> None:
        self._ticket = ticket.pieces()
        self._pieces: list[Piece] = []
        self._is_cut = False

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `Ticket.result` does at the end."""
        if self._is_cut:
            raise StopAsyncIteration
        piece = await anext(self._ticket)
        self._pieces.append(piece)
        if piece.tool_call is not None:
            self._is_cut = True
            self._ticket.cancel()
        return piece

    async def reply(self) -> Reply:
        """Wait for the reply; raises what `Ticket.result` does."""
        async for _ in self:
            pass
        completion = (await self._ticket).completion
        if self._is_cut:  # what was generated until the cancellation depends on timing
            completion = _first(completion, sum(len(piece.tokens) for piece in self._pieces))
        return reply_of(self._pieces, completion)


async def whole_reply(source: Ticket[Reply] | SingleCall) -> Reply:
    """Wait for the reply of either."""
    return await (source.reply() if isinstance(source, SingleCall) else source)


def _first(completion: Completion, count: int) -> Completion:
    """A completion that ended after `count` tokens."""
    logprobs = completion.logprobs
    return replace(
        completion,
        tokens=completion.tokens[:count],
        logprobs=None if logprobs is None else logprobs[:count],
        finish_reason="stop",
        timings=replace(completion.timings, new_tokens=count),
    )

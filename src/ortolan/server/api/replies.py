"""Reads the reply of a chat ticket, in pieces or whole."""

from collections.abc import AsyncIterator
from dataclasses import replace

from ortolan.runtime import ChatTicket, Completion, Reply
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.chat.reply import reply_of


class ReplyReader(AsyncIterator[Piece]):
    """The pieces of a reply, and after them the reply."""

    def __init__(
        self, ticket: ChatTicket, *, with_tokens: bool = False, single_call: bool = False
    ) -> None:
        self._ticket = ticket
        self._source = ticket.pieces() if with_tokens or single_call else ticket
        self._single_call = single_call
        self._pieces: list[Piece] = []
        self._is_cut = False

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `ChatTicket.reply` does at the end."""
        if self._is_cut:
            raise StopAsyncIteration
        piece = await anext(self._source)
        if self._single_call:
            self._pieces.append(piece)
            if piece.tool_call is not None:
                self._is_cut = True
                self._ticket.cancel()
        return piece

    async def reply(self) -> Reply:
        """Wait for the reply; raises what `ChatTicket.reply` does."""
        if not self._single_call:
            return await self._ticket
        async for _ in self:
            pass
        completion = (await self._ticket).completion
        if self._is_cut:  # what was generated until the cancellation depends on timing
            completion = _first(completion, sum(len(piece.tokens) for piece in self._pieces))
        return reply_of(self._pieces, completion)


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

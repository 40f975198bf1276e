"""Chat tickets: one question to a service, for the thread or task that asked it."""

from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Self

from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.generation.completion import Completion

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question
    from ortolan.runtime.chat.parser import Piece
    from ortolan.runtime.serving.ticket import Ticket

__all__ = ["ChatTicket", "reply_stream"]


class ChatTicket(Iterator["Piece"], AsyncIterator["Piece"]):
    """A reply that a service generates. Any thread and any event loop may use it.

        for piece in ticket: ...    # or: async for piece in ticket
        reply = ticket.reply()      # or: await ticket

    Pieces go to one reader; each holds content, reasoning or one tool call. The reply is complete
    whether they are read or not. Leaving a `with` block cancels an unfinished reply.

    Args:
        ticket: of the request.
        question: that it answers.
    """

    def __init__(self, ticket: "Ticket", question: "Question") -> None:
        self._ticket = ticket
        self._question = question
        self._pieces = reply_stream(ticket, question)

    @property
    def done(self) -> bool:
        """Whether generation has ended, read or not."""
        return self._ticket.done

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens."""
        return self._ticket.prompt_progress

    def cancel(self) -> None:
        """End the reply; see `Ticket.cancel`."""
        self._ticket.cancel()

    def reply(self, timeout: float | None = None) -> Reply:
        """Wait for the reply. Same arguments and errors as `Ticket.completion`."""
        return self._question.reply(self._ticket.completion(timeout))

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the reply; raises what `reply` does."""
        return self._question.reply((yield from self._ticket.__await__()))

    def __next__(self) -> "Piece":
        """Wait for the next piece; raises what `reply` does at the end."""
        return next(self._pieces)

    async def __anext__(self) -> "Piece":
        """Wait for the next piece; raises what `reply` does at the end."""
        return await anext(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.done:
            self.cancel()


def reply_stream(ticket: "Ticket", question: "Question") -> ReplyStream:
    """Pieces of a reply, for a thread or an event loop. Closing it cancels the ticket."""
    return ReplyStream(_TicketText(ticket), question.parser())


class _TicketText(Iterator[str], AsyncIterator[str]):
    """Adapts a ticket to what a `ReplyStream` reads."""

    def __init__(self, ticket: "Ticket") -> None:
        self._ticket = ticket

    @property
    def completion(self) -> Completion:
        return self._ticket.completion()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        return self._ticket.prompt_progress

    def close(self) -> None:
        self._ticket.cancel()

    def __next__(self) -> str:
        return next(self._ticket)

    async def __anext__(self) -> str:
        return await anext(self._ticket)

"""The texts of a ticket, for the stream of a conversation's answer."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from ortolan.runtime.generation.completion import Completion

if TYPE_CHECKING:
    from ortolan.runtime.serving.ticket import Ticket


class TicketTexts(Iterator[str], AsyncIterator[str]):
    """The texts of a ticket, as a `ReplyStream` reads them."""

    def __init__(self, ticket: "Ticket[Completion]") -> None:
        self._ticket = ticket

    @property
    def completion(self) -> Completion:
        """The completion, once it has ended."""
        return self._ticket.result()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Processed prompt tokens and their total."""
        return self._ticket.prompt_progress

    def close(self) -> None:
        """Cancel the request."""
        self._ticket.cancel()

    def __next__(self) -> str:
        return next(self._ticket).content

    async def __anext__(self) -> str:
        return (await anext(self._ticket)).content

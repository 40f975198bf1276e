"""The turns of a conversation that a service answers."""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.reply import ReplyStream
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import Draft

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat_options import ChatOptions
    from ortolan.runtime.serving.service import Service
    from ortolan.runtime.serving.ticket import Ticket


class Turns:
    """Asks the questions of one conversation."""

    def __init__(self, service: "Service", priority: int) -> None:
        self._service = service
        self._priority = priority
        self._key = os.urandom(16)

    def chat_stream(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> ReplyStream:
        """Pieces of an answer, for a thread or an event loop. Closing it cancels the request."""
        ticket, question = self._service.submit_turn(
            messages, options, draft, priority=self._priority, conversation=self._key
        )
        return ReplyStream(_Texts(ticket), question.parser())

    def forget(self) -> None:
        """Do nothing: the prefix cache is shared by all requests."""


class _Texts(Iterator[str], AsyncIterator[str]):
    """The texts of a ticket, as a `ReplyStream` reads them."""

    def __init__(self, ticket: "Ticket[Completion]") -> None:
        self._ticket = ticket

    @property
    def completion(self) -> Completion:
        return self._ticket.result()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        return self._ticket.prompt_progress

    def close(self) -> None:
        self._ticket.cancel()

    def __next__(self) -> str:
        return next(self._ticket).content

    async def __anext__(self) -> str:
        return (await anext(self._ticket)).content

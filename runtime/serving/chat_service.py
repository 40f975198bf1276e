"""A service that answers messages: what `Service` has for chats."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from ortolan.runtime.arguments import checked_count, checked_integer
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.reply import ReplyStream
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.serving.chat_ticket import ChatTicket, reply_stream

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat, Question
    from ortolan.runtime.chat.chat_options import ChatOptions
    from ortolan.runtime.serving.ticket import Ticket

__all__ = ["ChatService"]

MAX_REPLIES = 256
"""Replies to one question; each is a request."""


class ChatService(ABC):
    """Chats, on top of a service that continues prompts."""

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        priority: int = 0,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> ChatTicket: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int,
        priority: int = 0,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> list[ChatTicket]: ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int | None = None,
        priority: int = 0,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> ChatTicket | list[ChatTicket]:
        """Ask for the answer to a conversation, which the chat template writes as a prompt.

        In the mode `exact` the reply is that of `Decoder.chat` with the same `n` or `draft`, and
        that of a `Conversation`, to the bit.

        Args:
            messages: as for `Decoder.chat`.
            n: number of replies, each with a ticket; seeds count up. `None` returns one ticket, and
                no list.
            priority: as for `submit`.
            draft: as for `submit`.
            **options: as for `Decoder.chat`.

        Raises:
            ChatTemplateError: the bundle has no chat template, or a broken one.
            ChatError: messages or tools are wrong, or the template refuses them.
            MissingExtraError: Jinja is not installed.
            OrtolanError: as for `submit`.
        """
        count = 1 if n is None else checked_count("n", n, most=MAX_REPLIES)
        tickets, question = self._asked(messages, options, draft, n=count, priority=priority)
        replies = [ChatTicket(ticket, question) for ticket in tickets]
        return replies[0] if n is None else replies

    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> Conversation:
        """Begin a conversation that keeps its messages, and whose answers the service computes.

        What a turn shares with earlier prompts comes from the prefix cache. In an event loop, read
        `stream` by `async for` or await it; `ask` and `answer_tools` wait in the thread.

        Args:
            system: as for `Decoder.conversation`.
            tools: as for `chat`.
            variables: as for `chat`.
            priority: as for `submit`, of every answer.

        Raises:
            ChatTemplateError: as for `chat`.
            MissingExtraError: Jinja is not installed.
        """
        self._chat()  # refuses before anything is said
        turns = _Turns(self, checked_integer("priority", priority))
        return Conversation(turns, self._identity, system=system, tools=tools, variables=variables)

    @property
    @abstractmethod
    def _identity(self) -> str:
        """Of the bundle."""

    @abstractmethod
    def _chat(self) -> "Chat":
        """How the bundle converses."""

    @abstractmethod
    def _asked(
        self,
        messages: Sequence[Message],
        options: "ChatOptions",
        draft: Draft | None,
        *,
        n: int = 1,
        priority: int,
        conversation: bytes | None = None,
    ) -> "tuple[list[Ticket], Question]":
        """Tickets for `n` answers to a question, of a conversation where it has a name."""


class _Turns:
    """Answers the conversations of a service."""

    def __init__(self, service: ChatService, priority: int) -> None:
        self._service = service
        self._priority = priority
        self._name = os.urandom(16)

    def chat_stream(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> ReplyStream:
        (ticket,), question = self._service._asked(
            messages, options, draft, priority=self._priority, conversation=self._name
        )
        return reply_stream(ticket, question)

    def forget(self) -> None:
        """Nothing: the prefix cache belongs to all requests."""

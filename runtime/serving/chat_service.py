"""The chat methods of a `Service`."""

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

MAX_REPLIES = 256
"""Maximum number of replies per call; each is a request."""


class ChatService(ABC):
    """Chat methods for a service that continues prompts."""

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
        """Submit a conversation, to be answered.

        In the mode `exact`, the reply is that of `Decoder.chat` with the same `n` or `draft`, and
        that of a `Conversation`, to the bit.

        Args:
            messages: see `Decoder.chat`.
            n: number of replies, each with its ticket; seeds count up. `None` returns one ticket
                instead of a list.
            priority: see `submit`.
            draft: see `submit`.
            **options: see `ortolan.runtime.chat.chat_options.ChatOptions`.

        Raises:
            ChatTemplateError: the bundle has no valid chat template.
            ChatError: messages or tools are invalid, or the template rejects them.
            MissingExtraError: Jinja is not installed.
            OrtolanError: see `submit`.
        """
        count = 1 if n is None else checked_count("n", n, most=MAX_REPLIES)
        tickets, question = self._submit_question(
            messages, options, draft, n=count, priority=priority
        )
        replies = [ChatTicket(ticket, question.again()) for ticket in tickets]
        return replies[0] if n is None else replies

    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> Conversation:
        """Start a conversation that keeps its messages. The service computes its answers.

        The prefix cache holds what a turn shares with earlier prompts. In an event loop, use
        `async for` on `stream`, or await it; `ask` and `answer_tools` block the thread.

        Args:
            system: system message; `None` for the template's default.
            tools: see `chat`.
            variables: see `chat`.
            priority: of every answer; see `submit`.

        Raises:
            ChatTemplateError: the bundle has no valid chat template.
            MissingExtraError: Jinja is not installed.
        """
        self._chat()  # raises now if the bundle cannot chat
        turns = _Turns(self, checked_integer("priority", priority))
        return Conversation(turns, self._identity, system=system, tools=tools, variables=variables)

    @property
    @abstractmethod
    def _identity(self) -> str:
        """Identity of the bundle."""

    @abstractmethod
    def _chat(self) -> "Chat":
        """The bundle's chat template and reply format."""

    @abstractmethod
    def _submit_question(
        self,
        messages: Sequence[Message],
        options: "ChatOptions",
        draft: Draft | None,
        *,
        n: int = 1,
        priority: int,
        conversation: bytes | None = None,
    ) -> "tuple[list[Ticket], Question]":
        """Submit a question `n` times, with the key of its conversation, if any."""


class _Turns:
    """The turns of one conversation of a service."""

    def __init__(self, service: ChatService, priority: int) -> None:
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
        (ticket,), question = self._service._submit_question(
            messages, options, draft, priority=self._priority, conversation=self._key
        )
        return reply_stream(ticket, question)

    def forget(self) -> None:
        """Do nothing: the prefix cache is shared by all requests."""

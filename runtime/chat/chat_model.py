"""The chat methods of a `Decoder`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.generation.last_prompt import LastPrompt
from ortolan.runtime.generation.text_stream import TextStream

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat, Question
    from ortolan.runtime.chat.template import ChatTemplate


class ChatModel(ABC):
    """Chat methods for a model that continues prompts."""

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[Reply]: ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int | None = None,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply | list[Reply]:
        """Answer a conversation.

        Args:
            messages: mappings with `role` and `content`, as in OpenAI's chat completions. Control
                tokens in their texts are encoded as plain text.
            n: number of replies, returned as a list; seeds count up. `None` returns one reply.
            draft: see `generate`.
            **options: see `ortolan.runtime.chat.chat_options.ChatOptions`.

        Returns:
            The reply; append its `message` to continue the conversation.

        Raises:
            ChatTemplateError: the bundle has no valid chat template.
            ChatError: messages or tools are invalid, or the template rejects them.
            MissingExtraError: Jinja is not installed.
            OrtolanError: see `generate`.
        """
        question = self._chat.question(messages, options)
        replies = [question.again().reply(done) for done in self._completions(question, n, draft)]
        return replies[0] if n is None else replies

    def chat_stream(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> ReplyStream:
        """Answer a conversation piece by piece. Same options and errors as `chat`.

        Returns:
            An iterator of pieces: content, reasoning, or one call each. `reply` is available at
            the end.
        """
        question = self._chat.question(messages, options)
        return ReplyStream(self._text_stream(question, draft), question.parser())

    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        reuse: bool = True,
    ) -> Conversation:
        """Start a conversation that keeps its messages and the state of its last prompt.

        Args:
            system: system message; `None` for the template's default.
            tools: see `chat`.
            variables: see `chat`.
            reuse: keep the state of the last prompt in memory, so that only new tokens are
                computed. Answers are the same either way.

        Raises:
            ChatTemplateError: the bundle has no valid chat template.
            MissingExtraError: Jinja is not installed.
        """
        _ = self._chat  # fail now if there is no template
        is_reused = checked_flag("reuse", reuse)
        kept: list[LastPrompt] = []

        def answer(
            messages: Sequence[Message], options: ChatOptions, draft: Draft | None
        ) -> ReplyStream:
            question = self._chat.question(messages, options)
            last = kept[0] if kept and not kept[0].is_busy else self._last_prompt()
            kept[:] = [last] if is_reused else []
            return ReplyStream(self._text_stream(question, draft, last), question.parser())

        return Conversation(
            answer,
            self._identity,
            system=system,
            tools=tools,
            variables=variables,
            forget=kept.clear,
        )

    @property
    def chat_template(self) -> "ChatTemplate":
        """The chat template, to render prompts. Raises the same errors as `conversation`."""
        return self._chat.template

    @property
    @abstractmethod
    def _chat(self) -> "Chat": ...

    @property
    @abstractmethod
    def _identity(self) -> str:
        """Identity of the bundle."""

    @abstractmethod
    def _completions(
        self, question: "Question", n: int | None, draft: Draft | None
    ) -> list[Completion]:
        """Generate `n` completions, or one."""

    @abstractmethod
    def _text_stream(
        self, question: "Question", draft: Draft | None, last: LastPrompt | None = None
    ) -> TextStream:
        """Generate one completion piece by piece; with `last`, reuse the state of that prompt."""

    @abstractmethod
    def _last_prompt(self) -> LastPrompt:
        """Create an empty state for a conversation."""

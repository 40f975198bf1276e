"""A model that answers messages: what `Decoder` has for chats."""

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

__all__ = ["ChatModel"]


class ChatModel(ABC):
    """Chats, on top of a model that continues prompts."""

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
        """Answer a conversation, which the chat template of the model writes as a prompt.

        Args:
            messages: each a mapping with `role` and `content`, as OpenAI's chat completions have
                them. Control tokens in a content are text.
            n: number of replies; seeds count up. `None` returns one, and no list.
            draft: as for `generate`.
            **options: as `ortolan.runtime.chat.chat_options.ChatOptions` lists them: `tools` and
                others, and all options of `generate`.

        Returns:
            The answer, the reasoning before it, and calls of tools; a list of them for `n`. Its
            `message` is what to go on with.

        Raises:
            ChatTemplateError: the bundle has no chat template, or a broken one.
            ChatError: messages or tools are wrong, or the template refuses them.
            MissingExtraError: Jinja is not installed.
            InputError: as for `generate`, and all that `generate` raises.
        """
        question = self._chat.question(messages, options)
        replies = [question.reply(done) for done in self._completions(question, n, draft)]
        return replies[0] if n is None else replies

    def chat_stream(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> ReplyStream:
        """Answer a conversation, and give the reply piece by piece.

        Args:
            messages: as for `chat`.
            draft: as for `generate`.
            **options: as for `chat`.

        Returns:
            An iterator of pieces, each with some content, some reasoning or one call; its `reply`
            is there at the end.

        Raises:
            ChatTemplateError: as for `chat`.
            ChatError: as for `chat`.
            InputError: as for `generate`.
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
        """Begin a conversation that keeps its messages, and what was computed for them.

        Args:
            system: the first message; `None` for that of the template, if any.
            tools: as for `chat`.
            variables: as for `chat`.
            reuse: whether the states of the last prompt stay in memory, so that only what is new
                is computed. No answer changes by it.

        Raises:
            ChatTemplateError: as for `chat`.
            MissingExtraError: Jinja is not installed.
        """
        _ = self._chat  # refuses before anything is said
        turns = _Turns(self, reuse=checked_flag("reuse", reuse))
        return Conversation(turns, self._identity, system=system, tools=tools, variables=variables)

    @property
    def chat_template(self) -> "ChatTemplate":
        """The chat template, for prompts without an answer.

        Raises:
            ChatTemplateError: the bundle has no chat template, or a broken one.
            MissingExtraError: Jinja is not installed.
        """
        return self._chat.template

    @property
    @abstractmethod
    def _chat(self) -> "Chat":
        """How the bundle converses."""

    @property
    @abstractmethod
    def _identity(self) -> str:
        """Of the bundle."""

    @abstractmethod
    def _completions(
        self, question: "Question", n: int | None, draft: Draft | None
    ) -> list[Completion]:
        """What the prompt of a question is continued with; `n` of them, or one."""

    @abstractmethod
    def _text_stream(
        self, question: "Question", draft: Draft | None, last: LastPrompt | None = None
    ) -> TextStream:
        """The same piece by piece; with `last` exact, and from where the last prompt allows."""

    @abstractmethod
    def _last_prompt(self) -> LastPrompt:
        """An empty one, for a conversation."""


class _Turns:
    """Answers one conversation, each turn from the states of the last one."""

    def __init__(self, model: ChatModel, *, reuse: bool) -> None:
        self._model = model
        self._reuse = reuse
        self._last: LastPrompt | None = None

    def chat_stream(
        self,
        messages: Sequence[Message],
        *,
        draft: Draft | None = None,
        **options: Unpack[ChatOptions],
    ) -> ReplyStream:
        model = self._model
        question = model._chat.question(messages, options)
        last = self._last
        if last is None or last.is_busy:
            last = model._last_prompt()
        if self._reuse:
            self._last = last
        return ReplyStream(model._text_stream(question, draft, last), question.parser())

    def forget(self) -> None:
        self._last = None

"""`ChatModel`: how a `Decoder` chats and continues prompts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, overload

from ortolan.runtime.arguments import checked_count, checked_flag
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.reply import ParsedTexts, Reply, ReplyStream
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.last_prompt import LastPrompt
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.request import check_memory
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.model import Model

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat
    from ortolan.runtime.chat.template import ChatTemplate

MAX_PROMPTS = 256  # maximum number of prompts per call; each needs a slot


class ChatModel(Model):
    """A model that continues prompts, and so chats."""

    _memory: RequestMemory
    _reader: Callable[[Tokenizer | None], RequestReader]

    @overload
    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Reply: ...

    @overload
    def chat(
        self, messages: Sequence[Message], *, n: int, **options: Unpack[ChatOptions]
    ) -> list[Reply]: ...

    def chat(
        self, messages: Sequence[Message], *, n: int | None = None, **options: Unpack[ChatOptions]
    ) -> Reply | list[Reply]:
        """Answer a conversation.

        Args:
            messages: mappings with `role` and `content`, as in OpenAI's chat completions. Control
                tokens in their texts are encoded as plain text.
            n: number of replies, returned as a list; seeds count up. `None` returns one reply.
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
        count = 1 if n is None else checked_count("n", n, most=MAX_PROMPTS)
        completions = self._completions(
            [question.prompt] * count,
            question.options,
            exact=n is not None,
            tokenizer=question.tokenizer,
        )
        replies = [question.again().reply(completion) for completion in completions]
        return replies[0] if n is None else replies

    def chat_stream(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> ReplyStream:
        """Answer a conversation piece by piece. Same options and errors as `chat`.

        Returns:
            An iterator of pieces: content, reasoning, or one call each. `reply` is available at
            the end.
        """
        return self._replies(messages, options)

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

        def answer(messages: Sequence[Message], options: ChatOptions) -> ReplyStream:
            self._engine.check_usable()
            is_free = bool(kept) and not kept[0].is_busy
            last = kept[0] if is_free else LastPrompt(self._engine)
            kept[:] = [last] if is_reused else []
            return self._replies(messages, options, last)

        return Conversation(
            answer, self.identity, system=system, tools=tools, variables=variables,
            forget=kept.clear,
        )  # fmt: skip

    @property
    def chat_template(self) -> "ChatTemplate":
        """The chat template, to render prompts. Raises the same errors as `conversation`."""
        return self._chat.template

    @cached_property
    def _chat(self) -> "Chat":
        from ortolan.runtime.chat.chat import Chat  # needs the extra `chat`

        return Chat(self.bundle, self.tokenizer)

    def _replies(
        self, messages: Sequence[Message], options: ChatOptions, last: LastPrompt | None = None
    ) -> ReplyStream:
        question = self._chat.question(messages, options)
        texts = self._texts(
            question.prompt, question.options, tokenizer=question.tokenizer, last=last
        )
        return ReplyStream(
            ParsedTexts(texts, question.parser()),
            completion=lambda: texts.completion,
            stop=texts.close,
            progress=lambda: texts.prompt_progress,
        )

    def _completions(
        self,
        prompts: list[Any],
        options: Options,
        *,
        exact: bool,
        tokenizer: Tokenizer | None = None,
    ) -> list[Completion]:
        """Generate a completion of each prompt."""
        sequences = self._sequences(prompts, options, tokenizer=tokenizer)
        if sequences:
            has_draft = options.get("draft") is not None
            slots = 1 if has_draft else len(sequences)
            generator = Generator(self._engine, slots=slots, exact=exact or has_draft)
            for sequence in sequences:
                generator.submit(sequence)
            generator.run()
        return [sequence.completion() for sequence in sequences]

    def _texts(
        self,
        prompt: Any,
        options: Options,
        *,
        tokenizer: Tokenizer | None = None,
        last: LastPrompt | None = None,
    ) -> TextStream:
        """Generate one completion piece by piece; with `last`, reuse the state of that prompt."""
        (sequence,) = self._sequences(
            [prompt], options, tokenizer=tokenizer, streams=True, last=last
        )
        is_exact = last is not None or options.get("draft") is not None
        generator = Generator(self._engine, slots=1, exact=is_exact, last_prompt=last)
        if last is not None:
            last.begin(sequence)
        return TextStream(sequence, generator)

    def _sequences(
        self,
        prompts: list[Any],
        options: Options,
        *,
        streams: bool = False,
        tokenizer: Tokenizer | None = None,
        last: LastPrompt | None = None,
    ) -> list[SampledSequence]:
        """Check prompts, options and memory before anything is computed."""
        reader = self._reader(self.tokenizer if tokenizer is None else tokenizer)
        requests = reader.prompts(prompts, options)
        if last is None:
            check_memory(self._memory, requests)
        else:
            check_memory(self._memory, requests, rows=last.rows, held_tokens=last.held_tokens)
        return [reader.sequence(request, streams=streams) for request in requests]

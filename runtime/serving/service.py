"""Service: one loaded model for many concurrent requests.

The calling thread checks a request and hands it to the worker, whose thread computes
(`ortolan.runtime.serving.worker`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_integer, refuse_unknown
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.engine.attention_kernels import CHUNK, GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.prefix_cache import CACHE_BYTES, FOLDER_BYTES, PrefixCache
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.request_reader import Prompt, RequestReader
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.input_reader import is_batch
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.serving.generation_service import GenerationService
from ortolan.runtime.serving.ticket import Ticket
from ortolan.runtime.transcription.dictation import DictationOptions, dictate, dictation_of
from ortolan.runtime.transcription.transcript import Transcript

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat, Question
    from ortolan.runtime.encoder import Encoder

Mode = Literal["exact", "fast"]

MAX_REPLIES = 256
"""Maximum number of replies per call; each is a request."""


class ServeOptions(TypedDict, total=False):
    """Options of `Decoder.serve`, all optional.

    Attributes:
        slots: maximum number of sequences that are computed together; 8 by default.
        queue: maximum number of waiting requests; 64 by default.
        mode: `exact`, the default: outputs are bit-identical regardless of concurrent requests
            (docs/adr/0021). `fast`: a lone request takes less time, but concurrent requests can
            change its last bits, and so its tokens where two are almost equally likely.
        chunk: prompt tokens to compute before other sequences get their next token: an even
            divisor of 128. Small chunks make decode steps more regular and prompts slower. `None`,
            the default, chooses.
        cache_bytes: size of the prefix cache in memory; 256 MiB by default, 0 for none.
        cache_folder: folder in which the prefix cache persists; `None`, the default, for none.
        cache_folder_bytes: maximum size of all prefix caches in that folder; 4 GiB by default.
    """

    slots: int
    queue: int
    mode: Mode
    chunk: int | None
    cache_bytes: int
    cache_folder: str | os.PathLike[str] | None
    cache_folder_bytes: int


class Service(GenerationService):
    """Generates for many requests at once. Any thread and any event loop may use it.

        with model.serve(slots=8) as service:
            ticket = service.submit("def main(", max_new_tokens=64)
            for piece in ticket: ...

    Raises:
        InputError: an option is invalid, or the bundle cannot be `exact`.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Callable[[Tokenizer | None], RequestReader],
        tokenizer: Tokenizer | None,
        chat: "Callable[[], Chat]",
        *,
        encoder: "Encoder | None" = None,
        **options: Unpack[ServeOptions],
    ) -> None:
        refuse_unknown("serve", options, ServeOptions.__optional_keys__)
        self._reader = reader
        self._tokenizer = tokenizer
        self._chat = chat
        self._encoder = encoder
        is_exact = _is_exact(options.get("mode", "exact"), engine)
        chunk = _checked_chunk(
            options.get("chunk"), fixed=is_exact and engine.exactness.depends_on_chunks
        )
        prefixes = _prefix_cache(options, engine, is_exact=is_exact)
        aside = (lambda: 0) if prefixes is None else prefixes.free_bytes
        memory = RequestMemory(engine.manifest, aside=aside, is_on_host=engine.is_on_host)
        super().__init__(
            engine,
            partial(Generator, exact=is_exact, chunk=chunk, prefixes=prefixes),
            memory,
            slots=options.get("slots", 8),
            queue=options.get("queue", 64),
            prefixes=prefixes,
        )

    # --- for any thread ---------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, *, priority: int = 0, **options: Unpack[Options]
    ) -> Ticket[Completion]:
        """Submit a request. It is checked at once, and computed when it is its turn.

        Args:
            prompt: text or token ids. Empty text stands for the BOS token.
            priority: higher ones go first. If all slots are taken, a request suspends one of a
                lower priority, which later continues where it was.
            **options: see `ortolan.runtime.generation.options.Options`. A draft gives the same
                completion, to the bit, as in `Decoder.generate`; such a sequence is computed in
                separate calls.

        Raises:
            QueueFullError: the queue is full; the error says when to try again.
            ServiceClosedError: the service is closed.
            ServiceError: the service has failed.
            MemoryPlanError: the prompt and its new tokens would not fit into memory.
            ContextLengthError: they exceed the context.
            InputError: another part of the request is invalid.
            ForkedError: the process was forked after loading.
        """
        with self._counting_refusals():
            if is_batch(prompt):
                raise InputError("submit accepts a single prompt. Submit each prompt on its own.")
            (ticket,) = self._submit_prompts([prompt], options, self._tokenizer, priority=priority)
        return ticket

    @overload
    def chat(
        self, messages: Sequence[Message], *, priority: int = 0, **options: Unpack[ChatOptions]
    ) -> Ticket[Reply]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> list[Ticket[Reply]]: ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> Ticket[Reply] | list[Ticket[Reply]]:
        """Submit a conversation, to be answered.

        In the mode `exact`, the reply is that of `Decoder.chat` with the same `n` or `draft`, and
        that of a `Conversation`, to the bit.

        Args:
            messages: see `Decoder.chat`.
            n: number of replies, each with its ticket; seeds count up. `None` returns one ticket
                instead of a list.
            priority: see `submit`.
            **options: see `ortolan.runtime.chat.chat_options.ChatOptions`.

        Raises:
            ChatTemplateError: the bundle has no valid chat template.
            ChatError: messages or tools are invalid, or the template rejects them.
            MissingExtraError: Jinja is not installed.
            OrtolanError: see `submit`.
        """
        count = 1 if n is None else checked_count("n", n, most=MAX_REPLIES)
        with self._counting_refusals():
            question = self._chat().question(messages, options)
            tickets: list[Ticket[Reply]] = self._submit_prompts(
                [question.prompt] * count,
                question.options,
                question.tokenizer,
                priority=priority,
                question=question,
            )
        return tickets[0] if n is None else tickets

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
        priority = checked_integer("priority", priority)
        key = os.urandom(16)

        def answer(messages: Sequence[Message], options: ChatOptions) -> ReplyStream:
            with self._counting_refusals():
                question = self._chat().question(messages, options)
                (ticket,) = self._submit_prompts(
                    [question.prompt],
                    question.options,
                    question.tokenizer,
                    priority=priority,
                    conversation=key,
                    question=question,
                )
            return ReplyStream(
                ticket,
                completion=lambda: ticket.result().completion,
                stop=ticket.cancel,
                progress=lambda: ticket.prompt_progress,
            )

        identity = self._engine.identity
        return Conversation(answer, identity, system=system, tools=tools, variables=variables)

    def transcribe(self, sound: Sound, **options: Unpack[DictationOptions]) -> Transcript:
        """Transcribe a sound, and wait for it. Its parts are computed with other requests.

        Args:
            sound: as for `Decoder.transcribe`.
            **options: as for `Decoder.transcribe`.

        Raises:
            QueueFullError: the queue is full; the error says when to try again. Once the first
                part was accepted, the others wait for their place.
            OrtolanError: as `submit` and `Decoder.transcribe`.
        """
        with self._counting_refusals() as parts:

            def answer(
                samples_N: NDArray[np.float32], begun: str | None, most_tokens: int
            ) -> Completion:
                question = self._chat().dictation(samples_N, begun, most_tokens)
                tickets: list[Ticket[Completion]] = parts.submit(
                    self._submit_prompts,
                    [question.prompt],
                    question.options,
                    self._tokenizer,
                    priority=0,
                )
                return tickets[0].result()

            heard = dictation_of(self._engine.manifest, self._encoder)
            return dictate(sound, *heard, answer, options)

    def _submit_prompts(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        tokenizer: Tokenizer | None,
        *,
        priority: int,
        conversation: bytes | None = None,
        question: "Question | None" = None,
    ) -> list[Ticket[Any]]:
        reader = self._reader(tokenizer)
        requests = [
            replace(request, conversation=conversation)
            for request in reader.prompts(prompts, options)
        ]
        return self._submit_requests(reader, requests, priority=priority, question=question)


def _is_exact(mode: Mode, engine: Engine) -> bool:
    if not isinstance(mode, str) or mode not in get_args(Mode):
        raise InputError(f"mode must be {' or '.join(get_args(Mode))} (got {shown(mode)}).")
    if mode == "exact" and engine.exactness.mixes_rows:
        raise InputError(
            "A mixture of experts cannot be exact: concurrent requests change each other's last "
            "bits. Use mode='fast' (`ortolan serve --fast`)."
        )
    return mode == "exact"


def _prefix_cache(options: ServeOptions, engine: Engine, *, is_exact: bool) -> PrefixCache | None:
    most_bytes = checked_count("cache_bytes", options.get("cache_bytes", CACHE_BYTES), least=0)
    folder = options.get("cache_folder")
    most_file_bytes = options.get("cache_folder_bytes", FOLDER_BYTES)
    if most_bytes == 0 and folder is None:
        return None
    return PrefixCache(
        engine,
        exact=is_exact,
        most_bytes=most_bytes,
        folder=folder,
        most_file_bytes=checked_count("cache_folder_bytes", most_file_bytes, least=0),
    )


def _checked_chunk(chunk: int | None, *, fixed: bool) -> int:
    if chunk is None:
        return GRID if fixed else CHUNK
    chunk = checked_count("chunk", chunk, most=GRID)
    if chunk % 2 or GRID % chunk:
        raise InputError(f"chunk must be an even divisor of {GRID} (got {chunk}).")
    if fixed and chunk != GRID:
        raise InputError(
            f"chunk must be {GRID} for this model (got {chunk}): other chunks change its results. "
            "Leave it out, or use mode='fast' (`ortolan serve --fast`)."
        )
    return chunk

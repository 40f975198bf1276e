"""Service: one loaded model for many requests.

Requests come from any thread. They are checked there, and handed to the one thread that computes:
see `ortolan.runtime.serving.worker`.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack, get_args

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_count, checked_integer
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.engine.attention_kernels import CHUNK
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.prefix_cache import (
    CACHE_BYTES,
    FOLDER_BYTES,
    PrefixCache,
)
from ortolan.runtime.engine.runner import GRID
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.prompts import Prompt, PromptReader
from ortolan.runtime.generation.request import Request
from ortolan.runtime.inputs.source import is_batch
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.serving.chat_service import ChatService
from ortolan.runtime.serving.stats import ServiceStats
from ortolan.runtime.serving.ticket import Ticket
from ortolan.runtime.serving.worker import Worker

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Chat, Question

__all__ = ["MAX_SLOTS", "Mode", "Service"]

MAX_SLOTS = 256
"""Texts in one call of the model."""

MAX_QUEUE = 1 << 16
"""Requests that wait; each holds its prompt."""

Mode = Literal["exact", "fast"]


class Service(ChatService):
    """Generates texts for many requests at once. Any thread may use it, and any event loop.

        with model.serve(slots=8) as service:
            ticket = service.submit("def main(", max_new_tokens=64)
            for piece in ticket: ...

    In the mode `exact` a text is the same, to the bit, alone and beside others (docs/adr/0021). In
    the mode `fast` a lone text takes less time, and where two tokens are nearly as likely it may
    be another than beside others.

    At the end of a `with` it finishes what it has taken, or cancels it if the block raised. A
    service that is dropped without `close` finishes what it has taken, too; its tickets stay valid.

    Args:
        engine: of a decoder.
        reader: makes what reads requests, for texts by a tokenizer.
        tokenizer: of the bundle, where it has one.
        chat: how the bundle converses; called for the first question.
        slots: texts that are computed together, at most; in the mode `exact` at least
            `Engine.rows_multiple`.
        queue: requests that may wait besides.
        mode: whether texts depend on each other in the last bits.
        chunk: tokens of a prompt that are computed before the others get their next token; an even
            divisor of `GRID`. Fewer make steps more even and prompts slower. `None` chooses.
        cache_bytes: memory for what was computed of prompts, for others that begin alike.
        cache_folder: where that is kept for later services too; `None` for nowhere.
        cache_folder_bytes: of all files of prefix caches in that folder.

    Raises:
        InputError: an option is out of range, or the bundle cannot be `exact`.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Callable[[Tokenizer | None], PromptReader],
        tokenizer: Tokenizer | None,
        chat: "Callable[[], Chat]",
        *,
        slots: int = 8,
        queue: int = 64,
        mode: Mode = "exact",
        chunk: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_folder_bytes: int = FOLDER_BYTES,
    ) -> None:
        _check_mode(mode, engine)
        self._engine = engine
        self._reader = reader
        self._tokenizer = tokenizer
        self._chat_of_bundle = chat
        cache_bytes = checked_count("cache_bytes", cache_bytes, least=0)
        prefixes = None
        if cache_bytes > 0 or cache_folder is not None:
            prefixes = PrefixCache(
                engine,
                exact=mode == "exact",
                most_bytes=cache_bytes,
                folder=cache_folder,
                most_file_bytes=checked_count("cache_folder_bytes", cache_folder_bytes, least=0),
            )
        aside = (lambda: 0) if prefixes is None else prefixes.free_bytes
        self._memory = RequestMemory(engine.manifest, aside=aside)
        slots = checked_count("slots", slots, most=MAX_SLOTS)
        queue = checked_count("queue", queue, most=MAX_QUEUE)
        generator = Generator(
            engine,
            slots=slots,
            exact=mode == "exact",
            chunk=_checked_chunk(chunk, fixed=mode == "exact" and engine.depends_on_chunks),
            prefill_first=False,
            reserved=True,
            memory=self._memory,
            prefixes=prefixes,
        )
        self._worker = Worker(generator, engine=engine, slots=slots, queue=queue, prefixes=prefixes)
        self._dropped = weakref.finalize(self, self._worker.close_later)
        self._dropped.atexit = False  # the worker sees to that

    # --- for any thread ---------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        *,
        priority: int = 0,
        draft: Draft | None = None,
        **options: Unpack[Options],
    ) -> Ticket:
        """Ask for a text. It is checked here and now, and computed as soon as it is its turn.

        Args:
            prompt: text, or token ids. Empty text stands for the beginning-of-text token.
            priority: texts of a higher one go first; where no slot is free they take that of a
                text of a lower one, which goes on later from where it was.
            draft: guesses at the next tokens, as for `generate`, whose completion is then the same
                to the bit. Such a text is computed in calls of its own.
            **options: as `ortolan.runtime.generation.options.Options` lists them.

        Raises:
            QueueFullError: as many requests wait as may; it says when to try again.
            ServiceClosedError: the service takes no more requests.
            ServiceError: the service has failed.
            MemoryPlanError: the prompt and all of its new tokens are more than there is memory for.
            ContextLengthError: they are more than the context.
            InputError: anything else is wrong with the request.
            ForkedError: the process was forked after the model was loaded.
        """
        with self._counting_refusals():
            if is_batch(prompt):
                raise InputError("submit: expected one prompt, got a list. Submit each by itself.")
            (ticket,) = self._submitted(
                [prompt], options, self._tokenizer, draft=draft, priority=priority
            )
        return ticket

    def stats(self) -> ServiceStats:
        """What the service does now, and has done.

        Raises:
            ForkedError: the process was forked after the model was loaded.
        """
        self._engine.check_process()
        return self._worker.stats()

    def close(self, timeout: float | None = None) -> None:
        """Take no more requests, finish those there are, and give the memory back.

        Closing twice is no error.

        Args:
            timeout: seconds after which the texts that have not ended are cancelled; `None` waits
                as long as it takes.
        """
        self._dropped.detach()
        self._worker.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(None if error is None else 0)

    # --- a request --------------------------------------------------------------------------------

    @property
    def _identity(self) -> str:
        return self._engine.identity

    def _chat(self) -> "Chat":
        return self._chat_of_bundle()

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        self._engine.check_process()
        try:
            self._worker.check_open()
            yield
        except OrtolanError as error:
            self._worker.count_refused(error.code)
            raise

    def _asked(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        draft: Draft | None,
        *,
        n: int = 1,
        priority: int,
        conversation: bytes | None = None,
    ) -> "tuple[list[Ticket], Question]":
        with self._counting_refusals():
            question = self._chat().question(messages, options)
            prompts = [question.prompt] * n
            tickets = self._submitted(
                prompts,
                question.options,
                question.tokenizer,
                draft=draft,
                priority=priority,
                conversation=conversation,
            )
        return tickets, question

    def _submitted(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        tokenizer: Tokenizer | None,
        *,
        draft: Draft | None,
        priority: int,
        conversation: bytes | None = None,
    ) -> list[Ticket]:
        priority = checked_integer("priority", priority)
        reader = self._reader(tokenizer)
        requests = [
            replace(request, conversation=conversation)
            for request in reader.requests(prompts, options, draft=draft)
        ]
        for request in requests:
            self._memory.check(
                tokens=len(request.prompt) + request.limit,
                rows=1,
                held_tokens=self._worker.held_tokens,
            )
        tickets = [self._ticket(reader, request) for request in requests]
        self._worker.submit(tickets, priority=priority)
        return tickets

    def _ticket(self, reader: PromptReader, request: Request) -> Ticket:
        cancelled = request.cancelled
        if cancelled is not None:
            # whatever it raises must not end the texts of others
            request = replace(request, cancelled=lambda: _is_cancelled(cancelled, ticket))
        ticket = Ticket(
            reader.text(request, streams=True),
            has_pieces=self._engine.manifest.tokenizer is not None,
            lock=self._worker.lock,
            cancel=self._worker.cancel,
            check=self._engine.check_process,
        )
        return ticket


def _is_cancelled(cancelled: Callable[[], bool], ticket: Ticket) -> bool:
    """Whether a request is cancelled, by a function that the caller wrote."""
    try:
        return cancelled()
    except Exception as error:
        failure = InputError(f"cancel: expected an answer, got {type(error).__name__}: {error}.")
        failure.__cause__ = error
        ticket.fail(failure)
        return True


def _check_mode(mode: Mode, engine: Engine) -> None:
    if not isinstance(mode, str) or mode not in get_args(Mode):
        raise InputError(f"mode: expected {' or '.join(get_args(Mode))}, got {shown(mode)}.")
    if mode == "exact" and engine.mixes_rows:
        raise InputError(
            "mode: expected a model that computes each text by itself, got a mixture of experts, "
            "whose texts differ in the last bits beside others. Use mode='fast'."
        )


def _checked_chunk(chunk: int | None, *, fixed: bool) -> int:
    if chunk is None:
        return GRID if fixed else CHUNK
    chunk = checked_count("chunk", chunk, most=GRID)
    if chunk % 2 or GRID % chunk:
        raise InputError(f"chunk: expected an even divisor of {GRID}, got {chunk}.")
    if fixed and chunk != GRID:
        raise InputError(
            f"chunk: expected {GRID}, since this model gives something else for a prompt that is "
            f"cut elsewhere, got {chunk}. Leave it out, or use mode='fast'."
        )
    return chunk

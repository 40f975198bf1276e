"""Service: one loaded model for many requests.

One thread owns the generator and its slots, and does a round after the other while there is work.
Requests come from any thread: what they ask is checked there, and put down for that thread to
find. After each round it hands out the new pieces of all texts under one lock.
"""

import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Literal, Self, Unpack, get_args

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_count
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import GRID
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.errors import (
    InputError,
    QueueFullError,
    ServiceClosedError,
    ServiceError,
    shown,
)
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.prompts import Prompt, PromptReader
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_text import SampledText
from ortolan.runtime.inputs.source import is_batch
from ortolan.runtime.serving.prefix_counts import PrefixCounts
from ortolan.runtime.serving.prefixes import (
    CACHE_BYTES,
    FOLDER_BYTES,
    PrefixCache,
)
from ortolan.runtime.serving.signal import Woken, wake
from ortolan.runtime.serving.stats import Counts, ServiceStats
from ortolan.runtime.serving.ticket import Ticket

__all__ = ["MAX_SLOTS", "Mode", "Service"]

MAX_SLOTS = 256
"""Texts in one call of the model."""

MAX_QUEUE = 1 << 16
"""Requests that wait; each holds its prompt."""

CHUNK = 64
"""Tokens of a prompt between two steps of the other texts. Half of it takes a tenth longer."""

Mode = Literal["exact", "fast"]


class Service:
    """Generates texts for many requests at once. Any thread may use it, and any event loop.

        with model.serve(slots=8) as service:
            ticket = service.submit("def main(", max_new_tokens=64)
            for piece in ticket: ...

    In the mode `exact` a text is the same, to the bit, alone and beside others (docs/adr/0021). In
    the mode `fast` a lone text takes less time, and where two tokens are nearly as likely it may
    be another than beside others.

    At the end of a `with` it finishes what it has taken, or cancels it if the block raised.

    Args:
        engine: of a decoder.
        prompts: reads its requests.
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
        prompts: PromptReader,
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
        self._prompts = prompts
        self._cache_bytes = checked_count("cache_bytes", cache_bytes, least=0)
        self._prefixes = (
            PrefixCache(
                engine,
                exact=mode == "exact",
                most_bytes=self._cache_bytes,
                folder=cache_folder,
                most_file_bytes=checked_count("cache_folder_bytes", cache_folder_bytes, least=0),
            )
            if self._cache_bytes > 0 or cache_folder is not None
            else None
        )
        self._memory = RequestMemory(engine.manifest, aside=self._free_cache)
        self._slots = checked_count("slots", slots, most=MAX_SLOTS)
        self._most = self._slots + checked_count("queue", queue, most=MAX_QUEUE)
        self._generator = Generator(
            engine,
            slots=self._slots,
            exact=mode == "exact",
            chunk=_checked_chunk(chunk, fixed=mode == "exact" and engine.parts_matter),
            prefill_first=False,
            reserved=True,
            memory=self._memory,
            prefixes=self._prefixes,
        )
        # what follows is read and written with the lock held
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._commands: list[Callable[[], None]] = []
        self._open: dict[Ticket, None] = {}
        self._running, self._held = 0, 0
        self._counts = Counts()
        self._is_closing = False
        self._failure: ServiceError | None = None
        # a daemon, ended at the exit of the interpreter: one that is not closed would never exit
        self._thread = threading.Thread(target=self._run, name="ortolan-service", daemon=True)
        self._thread.start()
        atexit.register(self.close, 0)

    # --- for any thread ---------------------------------------------------------------------------

    def submit(self, prompt: Prompt, *, priority: int = 0, **options: Unpack[Options]) -> Ticket:
        """Ask for a text. It is checked here and now, and computed as soon as it is its turn.

        Args:
            prompt: text, or token ids. Empty text stands for the beginning-of-text token.
            priority: texts of a higher one go first; where no slot is free they take that of a
                text of a lower one, which goes on later from where it was.
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
        self._engine.check_process()
        try:
            with self._lock:
                self._check_open()
            ticket = self._ticket(self._request(prompt, priority, options))
            with self._lock:
                self._check_open()
                self._open[ticket] = None
                join = partial(self._generator.submit, ticket.text, priority=priority)
                self._commands.append(join)
                self._work.notify()
        except OrtolanError as error:
            with self._lock:
                self._counts.refused[error.code] += 1
            raise
        return ticket

    def stats(self) -> ServiceStats:
        """What the service does now, and has done.

        Raises:
            ForkedError: the process was forked after the model was loaded.
        """
        self._engine.check_process()
        with self._lock:
            return self._counts.stats(
                slots=self._slots,
                running=self._running,
                waiting=len(self._open) - self._running,
                cache=PrefixCounts() if self._prefixes is None else self._prefixes.counts,
            )

    def close(self, timeout: float | None = None) -> None:
        """Take no more requests, finish those there are, and give the memory back.

        Closing twice is no error.

        Args:
            timeout: seconds after which the texts that have not ended are cancelled; `None` waits
                as long as it takes.
        """
        atexit.unregister(self.close)
        if self._engine.is_stranded:
            return  # the thread is one of the parent
        with self._lock:
            self._is_closing = True
            self._work.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._lock:
                for ticket in self._open:
                    self._commands.append(partial(self._end, ticket.text))
                self._work.notify()
            self._thread.join()
        if self._prefixes is not None:
            self._prefixes.close()

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

    def _request(self, prompt: Prompt, priority: int, options: Options) -> Request:
        if is_batch(prompt):
            raise InputError("submit: expected one prompt, got a list. Submit each by itself.")
        if not isinstance(priority, int):
            raise InputError(f"priority: expected a whole number, got {shown(priority)}.")
        (request,) = self._prompts.requests([prompt], options)
        self._memory.check(
            tokens=len(request.prompt) + request.limit,
            rows=1,
            held_tokens=self._held,
        )
        return request

    def _ticket(self, request: Request) -> Ticket:
        cancelled = request.cancelled
        if cancelled is not None:
            # whatever it raises must not end the texts of others
            request = replace(request, cancelled=lambda: _asked(cancelled, ticket))
        ticket = Ticket(
            self._prompts.text(request, streams=True),
            has_pieces=self._engine.manifest.tokenizer is not None,
            lock=self._lock,
            cancel=self._cancel,
            check=self._engine.check_process,
        )
        return ticket

    def _check_open(self) -> None:
        """Refuse a request where there is no room for another one."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ServiceClosedError(
                "submit: expected a service that is open, got one that was closed. Make a new one."
            )
        if len(self._open) >= self._most:
            raise QueueFullError(
                f"submit: expected at most {self._most - self._slots} requests that wait, got one "
                f"more. Try again in {self._counts.gap_s:.1f} s.",
                retry_after_s=self._counts.gap_s,
            )

    def _free_cache(self) -> int:
        """Bytes that the prefix cache has not taken yet."""
        return self._cache_bytes - self._prefixes.counts.bytes if self._prefixes else 0

    def _cancel(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket in self._open:
                self._commands.append(partial(self._end, ticket.text))
                self._work.notify()

    # --- for the thread of the service ------------------------------------------------------------

    def _run(self) -> None:
        try:
            is_busy = False
            while (commands := self._commanded(is_busy=is_busy)) or is_busy:
                for command in commands:
                    command()
                is_busy = self._generator.round()
                self._deliver()
        except BaseException as error:
            self._fail(error)

    def _commanded(self, *, is_busy: bool) -> list[Callable[[], None]]:
        """What there is to do before the next round; nothing only if busy, or closed."""
        with self._lock:
            while not (is_busy or self._commands or self._is_closing):
                self._work.wait()
                self._counts.begin()
            commands, self._commands = self._commands, []
            return commands

    def _end(self, text: SampledText) -> None:
        if text.finish_reason is None:
            self._generator.cancel(text)

    def _deliver(self) -> None:
        """Hand out what a round brought."""
        woken: Woken = {}
        with self._lock:
            self._running, self._held = self._generator.in_slots, self._generator.held_tokens
            for ticket in list(self._open):
                piece, is_last = ticket.text.take(), ticket.text.finish_reason is not None
                if piece or is_last:
                    ticket.deliver(piece, is_last=is_last, woken=woken)
                if is_last:
                    del self._open[ticket]
                    self._counts.add(ticket.text)
        wake(woken)

    def _fail(self, error: BaseException) -> None:
        """Let every text fail, and refuse what comes."""
        failure = ServiceError(
            f"service: expected rounds without errors, got {type(error).__name__}: {error}. "
            "Make a new service, and report this."
        )
        failure.__cause__ = error
        woken: Woken = {}
        with self._lock:
            self._failure = failure
            for ticket in self._open:
                ticket.fail(failure)
                ticket.deliver("", is_last=True, woken=woken)
            self._open.clear()
            self._running = 0
        wake(woken)


def _asked(cancelled: Callable[[], bool], ticket: Ticket) -> bool:
    """Whether a request is cancelled, by a function that anybody may have written."""
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

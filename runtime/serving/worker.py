"""Worker: the thread of a service.

The thread alone owns the generator with its slots, and does a round after the other while there is
work. Other threads put down commands for it: submit, cancel, close. After each round it hands out
the new pieces of all texts under one lock.

    Service ──► Worker ◄── Thread (generator, slots)
                  ▲
    Ticket ───────┘

The worker does not refer to the service, so a service that nobody holds any more can be noticed:
the thread then finishes what was submitted and ends, as after `close`.
"""

import atexit
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from ortolan.runtime.engine.session import Engine
from ortolan.runtime.errors import QueueFullError, ServiceClosedError, ServiceError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.serving.prefix_counts import PrefixCounts
from ortolan.runtime.serving.prefixes import PrefixCache
from ortolan.runtime.serving.stats import Counts, ServiceStats
from ortolan.runtime.serving.ticket import Ticket, Woken, wake

__all__ = ["Worker"]

Command = Callable[[Generator], None]


class Worker:
    """Runs the rounds of a generator in a thread of its own. Any thread may call its methods.

    Args:
        generator: from now on used by the thread alone.
        engine: of the generator.
        slots: of the generator.
        queue: requests that may wait besides.
        prefixes: of the generator; closed when the thread ends.

    Attributes:
        lock: guards what tickets hold, and the state of the worker.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        engine: Engine,
        slots: int,
        queue: int,
        prefixes: PrefixCache | None,
    ) -> None:
        self._engine = engine
        self._slots = slots
        self._queue = queue
        self._prefixes = prefixes
        # `put` is safe wherever the garbage collector may call it, even with the lock held
        self._commands: SimpleQueue[Command] = SimpleQueue()
        # what follows is read and written with the lock held
        self.lock = threading.Lock()
        self._open: dict[Ticket, None] = {}
        self._running, self._held_tokens = 0, 0
        self._counts = Counts()
        self._is_closing = False
        self._failure: ServiceError | None = None
        # a daemon, ended at the exit of the interpreter: one that is not closed would never exit
        self._thread = threading.Thread(
            target=self._run, args=(generator,), name="ortolan-service", daemon=True
        )
        self._thread.start()
        atexit.register(self.close, 0)

    # --- for any thread ---------------------------------------------------------------------------

    def submit(self, tickets: Sequence[Ticket], *, priority: int) -> None:
        """Let the texts of some tickets wait for their turn, all of them or none.

        Raises:
            QueueFullError: more requests would wait than may.
            ServiceError: the worker is closed, or has failed.
        """
        with self.lock:
            self._check_open(len(tickets))
            for ticket in tickets:
                self._open[ticket] = None
                self._commands.put(partial(_submit, ticket.sequence, priority))

    def check_open(self) -> None:
        """Raise what `submit` would."""
        with self.lock:
            self._check_open()

    def cancel(self, ticket: Ticket) -> None:
        """End the text of a ticket before the next round, unless it has ended."""
        with self.lock:
            if ticket in self._open:
                self._commands.put(partial(_end, ticket.sequence))

    def count_refused(self, code: str) -> None:
        """Count a request that got an error."""
        with self.lock:
            self._counts.refused[code] += 1

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory."""
        with self.lock:
            return self._held_tokens

    def stats(self) -> ServiceStats:
        """What the service does now, and has done."""
        with self.lock:
            return self._counts.stats(
                slots=self._slots,
                running=self._running,
                waiting=len(self._open) - self._running,
                cache=PrefixCounts() if self._prefixes is None else self._prefixes.counts,
            )

    def close(self, timeout: float | None = None) -> None:
        """Accept no more requests, finish those there are, and wait for the end of the thread.

        Args:
            timeout: seconds after which the texts that have not ended are cancelled; `None` waits
                as long as it takes.
        """
        if self._engine.is_stranded:
            return  # the thread is one of the parent
        self.close_later()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self.lock:
                for ticket in self._open:
                    self._commands.put(partial(_end, ticket.sequence))
            self._thread.join()

    def close_later(self) -> None:
        """Close without waiting. Takes no lock: the garbage collector may call it anywhere."""
        self._commands.put(self._close)

    # --- for the thread ---------------------------------------------------------------------------

    def _run(self, generator: Generator) -> None:
        try:
            is_busy = False
            while (commands := self._commanded(is_busy=is_busy)) or is_busy:
                for command in commands:
                    command(generator)
                is_busy = generator.round()
                self._deliver(generator)
        except BaseException as error:
            self._fail(error)
        finally:
            atexit.unregister(self.close)
            if self._prefixes is not None:
                self._prefixes.close()

    def _commanded(self, *, is_busy: bool) -> list[Command]:
        """What there is to do before the next round; nothing only if busy, or closed."""
        commands: list[Command] = []
        with self.lock:
            may_wait = not is_busy and not self._is_closing
        if may_wait:
            commands.append(self._commands.get())
            with self.lock:
                self._counts.begin()
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands

    def _close(self, _: Generator) -> None:
        with self.lock:
            self._is_closing = True

    def _check_open(self, requests: int = 1) -> None:
        """Refuse requests where there is no room for them; with the lock held."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ServiceClosedError(
                "submit: expected a service that is open, got one that was closed. Make a new one."
            )
        if len(self._open) + requests > self._slots + self._queue:
            raise QueueFullError(
                f"submit: expected at most {self._queue} requests that wait, got more. "
                f"Try again in {self._counts.gap_s:.1f} s.",
                retry_after_s=self._counts.gap_s,
            )

    def _deliver(self, generator: Generator) -> None:
        """Hand out what a round brought."""
        woken: Woken = {}
        with self.lock:
            self._running, self._held_tokens = generator.in_slots, generator.held_tokens
            for ticket in list(self._open):
                piece, is_last = ticket.sequence.take(), ticket.sequence.finish_reason is not None
                if piece or is_last:
                    ticket.deliver(piece, is_last=is_last, woken=woken)
                if is_last:
                    del self._open[ticket]
                    self._counts.add(ticket.sequence)
        wake(woken)

    def _fail(self, error: BaseException) -> None:
        """Let every text fail, and refuse what comes."""
        failure = ServiceError(
            f"service: expected rounds without errors, got {type(error).__name__}: {error}. "
            "Make a new service, and report this."
        )
        failure.__cause__ = error
        woken: Woken = {}
        with self.lock:
            self._failure = failure
            for ticket in self._open:
                ticket.fail(failure)
                ticket.deliver("", is_last=True, woken=woken)
            self._open.clear()
            self._running = 0
        wake(woken)


def _submit(text: SampledSequence, priority: int, generator: Generator) -> None:
    generator.submit(text, priority=priority)


def _end(text: SampledSequence, generator: Generator) -> None:
    if text.finish_reason is None:
        generator.cancel(text)

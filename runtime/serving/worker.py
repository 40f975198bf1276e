"""Worker: the thread of a service.

    submit, cancel, close                     one round after the other
    any thread ──── queue of commands ──────► worker thread (generator, or queue of an encoder)
        ▲                                         │
        └──── tickets: results, under one lock ◄──┘

Only the worker thread touches the generator. Other threads queue commands for it. After each round
the worker hands what is new to the tickets, under one lock. After a round that fails, the generator
goes on (`Rounds.recover`), so that only those requests end that are the reason.

The worker holds no reference to the service. So when a service is dropped without `close`, the
worker is told: it finishes what was submitted, and ends.
"""

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import QueueFullError, ServiceClosedError, ServiceError, typed
from ortolan.runtime.serving.signals import Woken, wake

if TYPE_CHECKING:
    from ortolan.runtime.encoding.call import EncoderCall
    from ortolan.runtime.encoding.queue import EncoderQueue
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.generation.generator import Generator
    from ortolan.runtime.generation.sampled_sequence import SampledSequence
    from ortolan.runtime.serving.stats import Counts
    from ortolan.runtime.serving.ticket import Ticket

Work: TypeAlias = "SampledSequence | EncoderCall[Any]"
"""A request while a service computes it."""

Rounds: TypeAlias = "Generator | EncoderQueue"
"""What computes: `submit`, `cancel`, `round`, and `recover` after an exception of these."""

Command = Callable[[Rounds], bool | None]

_log = logging.getLogger("ortolan.runtime")


class Worker:
    """Runs rounds in its own thread. Any thread may call its methods.

    Attributes:
        lock: guards the state of the worker and of its tickets.
        held_tokens: tokens whose states are in memory.
    """

    def __init__(
        self,
        rounds: Rounds,
        *,
        engine: "Engine",
        slots: int,
        queue: int,
        counts: "Counts[Any]",
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._slots = slots
        self._queue = queue
        self._at_end = at_end
        # `put` may be called by the garbage collector at any point, even with the lock held
        self._commands: SimpleQueue[Command] = SimpleQueue()
        # guarded by the lock:
        self.lock = threading.Lock()
        self._open: dict[Work, Ticket[Any] | None] = {}
        self._running = self.held_tokens = 0
        self._counts = counts
        self._is_closing = False
        self._failure: ServiceError | None = None
        # a daemon that is closed at exit: otherwise an open service would block the exit
        self._thread = threading.Thread(
            target=self._run, args=(rounds,), name="ortolan-service", daemon=True
        )
        self._thread.start()
        atexit.register(self.close, 0)

    # --- for any thread ---------------------------------------------------------------------------

    def submit(self, requests: "Mapping[Work, Ticket[Any] | None]", *, priority: int) -> None:
        """Queue all requests, or none. Tickets are told what is new."""
        with self.lock:
            self.check_open(len(requests))
            self._open.update(requests)
            for work in requests:
                self.post(partial(_submit, work, priority))

    def check_open(self, requests: int = 1) -> None:
        """Raise if there is no room for the requests. Call it with the lock."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ServiceClosedError("The service is closed. Start a new one.")
        if len(self._open) + requests > self._slots + self._queue:
            raise QueueFullError(
                f"The queue of {self._queue} requests is full. "
                f"Try again in {self._counts.gap_s:.1f} s.",
                retry_after_s=self._counts.gap_s,
            )

    def post(self, command: Command) -> None:
        """Let the thread run a command before its next round. Needs no lock."""
        self._commands.put(command)

    def cancel(self, work: Work) -> None:
        """End a request before the next round, unless it has ended."""
        self.post(partial(_end, work))

    def count_refused(self, code: str) -> None:
        """Count a rejected request."""
        with self.lock:
            self._counts.add_refused(code)

    @property
    def is_failing(self) -> bool:
        """Whether the latest requests failed, or all further ones will."""
        return self._failure is not None or self._counts.is_failing

    def stats(self) -> Any:
        """The present load, and totals."""
        with self.lock:
            waiting = len(self._open) - self._running
            return self._counts.stats(running=self._running, waiting=waiting)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more requests, finish the accepted ones, and wait for the thread to end.

        Args:
            timeout: seconds after which unfinished requests are cancelled; `None` waits for them.
        """
        if self._engine.is_stranded:
            return  # this is a forked process, without the thread
        self.close_later()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self.lock:
                for work in self._open:
                    self.cancel(work)
            self._thread.join()

    def close_later(self) -> None:
        """Close without waiting. Needs no lock, so the garbage collector may call it."""
        self.post(self._close)

    # --- for the thread ---------------------------------------------------------------------------

    def _run(self, rounds: Rounds) -> None:
        try:
            is_busy = False
            while (commands := self._take_commands(is_busy=is_busy)) or is_busy:
                is_busy = self._advance(rounds, commands)
                self._deliver(running=rounds.in_slots, held_tokens=rounds.held_tokens)
        except BaseException as error:
            self._fail(error)
        finally:
            atexit.unregister(self.close)
            if self._at_end is not None:
                self._at_end()

    def _take_commands(self, *, is_busy: bool) -> list[Command]:
        """Take the queued commands; wait for one if there is no work and the worker is open."""
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

    def _advance(self, rounds: Rounds, commands: list[Command]) -> bool:
        """Execute commands and a round. Returns whether there is more work."""
        is_busy = True
        for command in (*commands, _round):
            try:
                is_busy = command(rounds) is not False
            except Exception as error:
                self._recover(rounds, error)
                # without the lock: only this thread takes requests out
                is_busy = any(not work.is_done for work in list(self._open))
        return is_busy

    def _recover(self, rounds: Rounds, error: Exception) -> None:
        is_expected = isinstance(error, OrtolanError | MemoryError | OSError)
        _log.warning(
            "The service goes on after a failed call: %s: %s",
            *(type(error).__name__, error),
            exc_info=None if is_expected else error,
        )
        with self.lock:
            self._counts.add_failed_call()
        rounds.recover(error)

    def _close(self, _: Rounds) -> None:
        with self.lock:
            self._is_closing = True

    def _deliver(self, *, running: int, held_tokens: int) -> None:
        """Hand what is new to the tickets, and let go of requests that have ended."""
        woken: Woken = {}
        with self.lock:
            self._running, self.held_tokens = running, held_tokens
            for work, ticket in list(self._open.items()):
                if ticket is not None:
                    ticket.deliver(woken)
                if work.is_done:
                    del self._open[work]
                    self._counts.add(work)
        wake(woken)

    def _fail(self, error: BaseException) -> None:
        """Fail all open requests, and reject new ones."""
        failure = ServiceError(
            f"The service failed with {type(error).__name__}: {error}. Start a new one, and report "
            "this bug."
        )
        failure.__cause__ = error
        _log.error("%s", failure, exc_info=error)
        with self.lock:
            self._failure = failure
        for work in self._open:  # without the lock: only this thread takes requests out
            if not work.is_done:
                work.fail(failure)
        self._deliver(running=0, held_tokens=0)


def _round(rounds: Rounds) -> bool:
    return rounds.round()


def _submit(work: Any, priority: int, rounds: Rounds) -> None:
    try:
        rounds.submit(work, priority=priority)
    except Exception as error:
        work.fail(typed(error))
        raise


def _end(work: Any, rounds: Rounds) -> None:
    if not work.is_done:
        rounds.cancel(work)

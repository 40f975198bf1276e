"""Tickets: one request of a service, for the thread or task that submitted it.

A thread waits on a condition, a task on a future of its loop. The worker wakes both under the one
lock of the service: threads directly, and all tasks of a loop by a single call into that loop.
"""

import threading
import time
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_seconds
from ortolan.runtime.generation.completion import Completion, TokenLogprobs
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.inputs.tokenizer import no_tokenizer

__all__ = ["Signal", "TextPiece", "TextPieces", "Ticket", "Woken", "wake"]

T = TypeVar("T")

Woken = dict[AbstractEventLoop, list["Future[None]"]]
"""Futures to resolve, by event loop."""


class Signal:
    """Wakes threads and tasks. All methods need the lock.

    Args:
        lock: of the service.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self._futures: set[Future[None]] = set()

    def wait(self, timeout: float | None) -> None:
        """Block this thread, releasing the lock; it may wake up early."""
        self._condition.wait(timeout)

    def future(self) -> "Future[None]":
        """A future for a task of the running loop to await; then call `forget`."""
        future: Future[None] = get_running_loop().create_future()
        self._futures.add(future)
        return future

    def forget(self, future: "Future[None]") -> None:
        """Drop a future whose task no longer waits."""
        self._futures.discard(future)

    def send(self, woken: Woken) -> None:
        """Wake waiting threads, and add waiting tasks to `woken`, for `wake`."""
        self._condition.notify_all()
        for future in self._futures:
            woken.setdefault(future.get_loop(), []).append(future)
        self._futures.clear()


def wake(woken: Mapping[AbstractEventLoop, list["Future[None]"]]) -> None:
    """Resume tasks, by one call into each loop. Call it without the lock."""
    for loop, futures in woken.items():
        with suppress(RuntimeError):  # a closed loop has no waiting task
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list["Future[None]"]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Part of a completion: its texts join to the text, its tokens to the tokens.

    Attributes:
        text: the new text; may be empty in the last piece, such as that of EOS.
        tokens: the new ids; the text of the last one ends in this piece.
        logprobs: one entry per token; `None` unless the request asks for them.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None


class Ticket(Iterator[str], AsyncIterator[str]):
    """A request of a service. Any thread and any event loop may use it.

        for text in ticket: ...              # or: async for text in ticket
        for piece in ticket.pieces(): ...    # with tokens and log-probabilities
        completion = ticket.completion()     # or: await ticket

    Text goes to one reader; a slow reader gets several pieces joined. A piece never ends inside a
    character or a stop text. Leaving a `with` block cancels an unfinished request.

    Args:
        sequence: of the request.
        has_pieces: whether the bundle has a tokenizer.
        lock: of the service.
        cancel: tells the service to cancel this ticket.
        check: raises in a process that is not the service's.
    """

    def __init__(
        self,
        sequence: SampledSequence,
        *,
        has_pieces: bool,
        lock: threading.Lock,
        cancel: Callable[["Ticket"], None],
        check: Callable[[], None],
    ) -> None:
        self.sequence = sequence
        self._has_pieces = has_pieces
        self._lock = lock
        self._cancel = cancel
        self._check = check
        self._more, self._end = Signal(lock), Signal(lock)
        # unread texts, each with the number of tokens so far
        self._pending: deque[tuple[str, int]] = deque()
        self._read_tokens = 0
        self._is_done = False
        self._error: OrtolanError | None = None

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether generation has ended, read or not."""
        return self._is_done

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens."""
        return self.sequence.prompt_progress

    def pieces(self) -> "TextPieces":
        """Read the text with its tokens and log-probabilities, instead of the text alone.

        Pieces are not joined: each is what one call of the model added.

        Raises:
            TokenizerError: the bundle has no tokenizer.
        """
        self._check_pieces()
        return TextPieces(self)

    def cancel(self) -> None:
        """End the request; its slot is free before the next call of the model.

        The completion holds what was generated so far. Cancelling a finished request does nothing.
        """
        self._check()
        self._cancel(self)

    def completion(self, timeout: float | None = None) -> Completion:
        """Wait for the completion.

        Args:
            timeout: maximum wait in seconds; `None` waits without limit.

        Raises:
            TimeoutError: the wait ended first; the request continues.
            InputError: the timeout is not a number.
            NumericError: the logits are not finite.
            MemoryPlanError: there was not enough memory when it was the request's turn.
            ServiceError: the service failed.
            ForkedError: the process was forked after loading.
        """
        self._check()
        until = None if timeout is None else time.monotonic() + checked_seconds("timeout", timeout)
        with self._lock:
            while not self._is_done:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"The completion was not ready within {timeout} s. Wait longer, or cancel."
                    )
                self._end.wait(left)
        return self._completed()

    def __await__(self) -> Generator[Any, None, Completion]:
        """Wait for the completion; raises what `completion` does."""
        return self._awaited().__await__()

    def __next__(self) -> str:
        """Wait for the next text; raises what `completion` does at the end."""
        text = _joined(self.next_pieces())
        if not text:
            self.raise_error()
            raise StopIteration
        return text

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next text; raises what `completion` does at the end."""
        text = _joined(await self.anext_pieces())
        if not text:
            self.raise_error()
            raise StopAsyncIteration
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self.cancel()

    # --- for readers ------------------------------------------------------------------------------

    def next_pieces(self, most: int | None = None) -> list[TextPiece]:
        """Wait for unread pieces, and return the first `most`; none at the end."""
        self._check_pieces()
        with self._lock:
            while (pieces := self._take(most)) is None:
                self._more.wait(None)
        return pieces

    async def anext_pieces(self, most: int | None = None) -> list[TextPiece]:
        """Wait for unread pieces, and return the first `most`; none at the end."""
        self._check_pieces()
        return await self._when(self._more, lambda: self._take(most))

    def raise_error(self) -> None:
        """Raise what `completion` raises; call it at the end of the pieces."""
        self._completed()

    def piece(self, text: str, start: int, end: int) -> TextPiece:
        """A piece with the tokens from `start` to `end`."""
        sequence = self.sequence
        has_logprobs = sequence.request.logprobs is not None
        return TextPiece(
            text=text,
            tokens=tuple(sequence.tokens[start:end]),
            logprobs=tuple(sequence.logprobs[start:end]) if has_logprobs else None,
        )

    # --- for the service, with the lock held ------------------------------------------------------

    def deliver(self, text: str, *, is_last: bool, woken: Woken) -> None:
        """Hand the next text to the reader, and note whether it is the last."""
        self._pending.append((text, len(self.sequence.tokens)))
        self._is_done = self._is_done or is_last
        self._more.send(woken)
        if is_last:
            self._end.send(woken)

    def fail(self, error: OrtolanError) -> None:
        """Set the error that `completion` raises; call `deliver` with the end after it."""
        self._error = self._error or error

    # ----------------------------------------------------------------------------------------------

    def _take(self, most: int | None) -> list[TextPiece] | None:
        """Remove the first `most` unread pieces: none at the end, `None` if there are none yet."""
        if not self._pending and not self._is_done:
            return None
        pieces: list[TextPiece] = []
        while self._pending and len(pieces) != most:
            text, end = self._pending.popleft()
            start, self._read_tokens = self._read_tokens, end
            if text or end > start:
                pieces.append(self.piece(text, start, end))
        return pieces

    async def _awaited(self) -> Completion:
        self._check()
        await self._when(self._end, lambda: self._is_done or None)
        return self._completed()

    async def _when(self, signal: Signal, poll: Callable[[], T | None]) -> T:
        """Wait until `poll` returns a value; it is called after each signal."""
        while True:
            with self._lock:
                value = poll()
                if value is not None:
                    return value
                future = signal.future()
            try:
                await future
            finally:
                with self._lock:
                    signal.forget(future)

    def _completed(self) -> Completion:
        if self._error is not None:
            raise self._error
        return self.sequence.completion()

    def _check_pieces(self) -> None:
        self._check()
        if not self._has_pieces:
            raise no_tokenizer("read pieces")


class TextPieces(Iterator[TextPiece], AsyncIterator[TextPiece]):
    """The pieces of a ticket, for a thread or a task."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def __next__(self) -> TextPiece:
        """Wait for the next piece; raises what `Ticket.completion` does at the end."""
        for piece in self._ticket.next_pieces(1):
            return piece
        self._ticket.raise_error()
        raise StopIteration

    async def __anext__(self) -> TextPiece:
        """Wait for the next piece; raises what `Ticket.completion` does at the end."""
        for piece in await self._ticket.anext_pieces(1):
            return piece
        self._ticket.raise_error()
        raise StopAsyncIteration


def _joined(pieces: list[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces)

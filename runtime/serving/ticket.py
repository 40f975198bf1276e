"""Ticket: one request of a service, seen by whoever made it."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_seconds
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.serving.signal import Signal, Woken

__all__ = ["Ticket"]

Found = TypeVar("Found")


class Ticket(Iterator[str], AsyncIterator[str]):
    """A text that a service generates. Any thread and any event loop may use it.

        for piece in ticket: ...             # or: async for piece in ticket
        completion = ticket.completion()     # or: await ticket

    Pieces go to one reader. One that is slower than the model gets several of them as one, so what
    waits for it is never more than the text. A piece never holds half a character nor a part of a
    stop text.

    At the end of a `with` a text that has not ended is cancelled.

    Args:
        text: that is generated.
        has_pieces: whether the bundle has a tokenizer.
        lock: of the service.
        cancel: asks the service to cancel it.
        check: refuses a process that is not the service's.
    """

    def __init__(
        self,
        text: SampledSequence,
        *,
        has_pieces: bool,
        lock: threading.Lock,
        cancel: Callable[["Ticket"], None],
        check: Callable[[], None],
    ) -> None:
        self.text = text
        self._has_pieces = has_pieces
        self._lock = lock
        self._cancel = cancel
        self._check = check
        self._more, self._end = Signal(lock), Signal(lock)
        self._pending = ""
        self._is_done = False
        self._error: OrtolanError | None = None

    # --- for its maker ----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the text has ended, whatever of it was read."""
        return self._is_done

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are done, and how many there are. Any thread may ask."""
        return self.text.prompt_progress

    def cancel(self) -> None:
        """End the text where it is; its slot is free before the next call of the model.

        The completion has what came until then. Cancelling again, or too late, changes nothing.
        """
        self._check()
        self._cancel(self)

    def completion(self, timeout: float | None = None) -> Completion:
        """Wait for everything that is generated.

        Args:
            timeout: seconds to wait at most; `None` waits as long as it takes.

        Raises:
            TimeoutError: it takes longer; the text goes on.
            InputError: the timeout is no number.
            NumericError: the model gave logits that are not finite.
            MemoryPlanError: there was no memory for it when it was its turn.
            ServiceError: the service failed.
            ForkedError: the process was forked after the model was loaded.
        """
        self._check()
        until = None if timeout is None else time.monotonic() + checked_seconds("timeout", timeout)
        with self._lock:
            while not self._is_done:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"completion: expected it within {timeout} s, got none. "
                        "Wait longer, or cancel it."
                    )
                self._end.wait(left)
        return self._completed()

    def __await__(self) -> Generator[Any, None, Completion]:
        """Wait for everything that is generated; raises what `completion` does."""
        return self._awaited().__await__()

    def __next__(self) -> str:
        """Wait for the next piece; at the end it raises what `completion` does."""
        self._check_pieces()
        with self._lock:
            while (piece := self._take()) is None:
                self._more.wait(None)
        if not piece:
            self._completed()
            raise StopIteration
        return piece

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next piece; at the end it raises what `completion` does."""
        self._check_pieces()
        piece = await self._when(self._more, self._take)
        if not piece:
            self._completed()
            raise StopAsyncIteration
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_done:
            self.cancel()

    # --- for the service, with the lock held ------------------------------------------------------

    def deliver(self, piece: str, *, is_last: bool, woken: Woken) -> None:
        """Hand out a piece, and say whether the text has ended."""
        self._pending += piece
        self._is_done = self._is_done or is_last
        self._more.give(woken)
        if is_last:
            self._end.give(woken)

    def fail(self, error: OrtolanError) -> None:
        """Let the completion raise an error; `deliver` the end after it."""
        self._error = self._error or error

    # ----------------------------------------------------------------------------------------------

    def _take(self) -> str | None:
        """What there is to read: empty at the end, `None` as long as there will be more."""
        if not self._pending and not self._is_done:
            return None
        piece, self._pending = self._pending, ""
        return piece

    async def _awaited(self) -> Completion:
        self._check()
        await self._when(self._end, lambda: self._is_done or None)
        return self._completed()

    async def _when(self, signal: Signal, what: Callable[[], Found | None]) -> Found:
        """Wait for a signal until there is something."""
        while True:
            with self._lock:
                found = what()
                if found is not None:
                    return found
                future = signal.future()
            try:
                await future
            finally:
                with self._lock:
                    signal.forget(future)

    def _completed(self) -> Completion:
        if self._error is not None:
            raise self._error
        return self.text.completion()

    def _check_pieces(self) -> None:
        self._check()
        if not self._has_pieces:
            raise no_tokenizer("read pieces")

"""The base of all tickets: one request of a service, for the thread or task that submitted it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_seconds
from ortolan.runtime.serving.signals import Signal, Woken


class Work(Protocol):
    """A request while a service computes it: a sequence, or a call of an encoder."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, for whatever reason."""

    @property
    def was_cancelled(self) -> bool:
        """Whether it was cancelled."""

    @property
    def error(self) -> OrtolanError | None:
        """The error that ended it, if any."""

    def fail(self, error: OrtolanError) -> None:
        """End it with an error."""


W = TypeVar("W", bound=Work)
R = TypeVar("R")


class BaseTicket(ABC, Generic[W, R]):
    """A request and its result. Any thread and any event loop may use it.

    Args:
        work: what the service computes.
        lock: of the service.
        cancel: tells the service to cancel this ticket.
        check: raises in a process that is not the service's.
    """

    def __init__(
        self,
        work: W,
        *,
        lock: threading.Lock,
        cancel: "Callable[[BaseTicket[Any, Any]], None]",
        check: Callable[[], None],
    ) -> None:
        self.work = work
        self._cancel = cancel
        self._check = check
        self._end = Signal(lock)
        self._is_done = False
        self._error: OrtolanError | None = None

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the request has ended, read or not."""
        return self._is_done

    @property
    def error(self) -> OrtolanError | None:
        """The error that the result raises, once the request has ended."""
        return self._error or self.work.error

    def cancel(self) -> None:
        """End the request before the next call of the model.

        Cancelling a finished request does nothing.
        """
        self._check()
        self._cancel(self)

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result."""
        return self._awaited().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self.cancel()

    # --- for the service, with the lock held ------------------------------------------------------

    @abstractmethod
    def deliver(self, woken: Woken) -> bool:
        """Hand over what is new, and return whether the request has ended."""

    def end(self, woken: Woken) -> None:
        """Tell all readers that the request has ended."""
        self._is_done = True
        self._end.send(woken)

    def fail(self, error: OrtolanError) -> None:
        """Set the error that the result raises; call `end` after it."""
        self._error = self._error or error

    # ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _completed(self) -> R:
        """The result of a request that has ended without an error of the service."""

    def _waited(self, timeout: float | None, what: str) -> R:
        """Block this thread until the result is there."""
        self._check()
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        try:
            self._end.wait(lambda: self._is_done or None, seconds)
        except TimeoutError:
            raise TimeoutError(
                f"The {what} was not ready within {timeout} s. Wait longer, or cancel."
            ) from None
        return self._result()

    async def _awaited(self) -> R:
        self._check()
        await self._end.awaited(lambda: self._is_done or None)
        return self._result()

    def _result(self) -> R:
        if self._error is not None:
            raise self._error
        return self._completed()

"""The base of all services: their worker, what they refuse, and their end."""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_count
from ortolan.runtime.errors import QueueFullError
from ortolan.runtime.serving.worker import Worker

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.serving.stats import Counts
    from ortolan.runtime.serving.worker import Rounds

P = ParamSpec("P")
R = TypeVar("R")

MAX_QUEUE = 1 << 16
"""Maximum length of the queue."""


class Parts:
    """The parts of one request: a full queue refuses the first, and delays the others."""

    def __init__(self) -> None:
        self.are_accepted = False

    def submit(self, submit: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `submit` until the queue has room."""
        while True:
            try:
                submitted = submit(*args, **kwargs)
            except QueueFullError as error:
                if not self.are_accepted:
                    raise
                time.sleep(min(error.retry_after_s, 1.0))
            else:
                self.are_accepted = True
                return submitted


class BaseService:
    """A loaded model with its own thread. Any thread and any event loop may use it."""

    def __init__(
        self,
        engine: "Engine",
        rounds: "Rounds",
        counts: "Counts[Any]",
        *,
        slots: int,
        queue: int,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        queue = checked_count("queue", queue, most=MAX_QUEUE)
        self._engine = engine
        self._worker = Worker(
            rounds, engine=engine, slots=slots, queue=queue, counts=counts, at_end=at_end
        )
        self._dropped = weakref.finalize(self, self._worker.close_later)
        self._dropped.atexit = False  # the worker closes itself at exit

    def close(self, timeout: float | None = None) -> None:
        """Accept no more requests, finish the accepted ones, and release the memory.

        A service that is dropped finishes them, too; its tickets stay valid.

        Args:
            timeout: seconds after which unfinished requests are cancelled; `None` waits for them.
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
        """Close the service; after an error, cancel its requests."""
        self.close(None if error is None else 0)

    @property
    def is_failing(self) -> bool:
        """Whether the model could not compute the latest requests, so that the next may fail, too.

        A request that succeeds ends it.
        """
        return self._worker.is_failing

    @contextmanager
    def _counting_refusals(self) -> Iterator[Parts]:
        """Count an error of a request, unless one of its parts was accepted before."""
        self._engine.check_usable()
        parts = Parts()
        try:
            with self._worker.lock:
                self._worker.check_open()  # before the request is read
            yield parts
        except OrtolanError as error:
            if not parts.are_accepted:
                self._worker.count_refused(error.code)
            raise

"""The base of all services: checks, limits and the end of a service."""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import QueueFullError

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.serving.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

MAX_QUEUE = 1 << 16
"""Maximum length of the queue."""


class _FailedError(Exception):
    """Carries the error of an accepted request past those that count refused ones."""

    def __init__(self, error: OrtolanError) -> None:
        self.error = error


class BaseService:
    """A loaded model with its own thread. Any thread and any event loop may use it.

    Leaving the `with` block finishes all accepted requests, or cancels them if the block raised. A
    service that is dropped without `close` finishes them, too; its tickets stay valid.
    """

    def __init__(self, engine: "Engine", worker: "Worker") -> None:
        self._engine = engine
        self._worker = worker
        self._dropped = weakref.finalize(self, worker.close_later)
        self._dropped.atexit = False  # the worker closes itself at exit

    def close(self, timeout: float | None = None) -> None:
        """Accept no more requests, finish the accepted ones, and release the memory.

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
        self.close(None if error is None else 0)

    @property
    def is_failing(self) -> bool:
        """Whether the model could not compute the latest requests, so that the next may fail, too.

        A request that succeeds ends it.
        """
        return self._worker.is_failing

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        self._engine.check_process()
        try:
            self._worker.check_open()
            yield
        except _FailedError as failed:
            raise failed.error from None
        except OrtolanError as error:
            self._worker.count_refused(error.code)
            raise


def waited(result: Callable[[], R]) -> R:
    """Wait for a request that was accepted: its error is not counted as a refusal."""
    try:
        return result()
    except OrtolanError as error:
        raise _FailedError(error) from None


def patiently(submit: Callable[P, R]) -> Callable[P, R]:
    """Submit parts of one request: a full queue refuses the first, and delays the others."""
    is_accepted = False

    def submit_part(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal is_accepted
        while True:
            try:
                submitted = submit(*args, **kwargs)
            except QueueFullError as error:
                if not is_accepted:
                    raise
                time.sleep(min(error.retry_after_s, 1.0))
            else:
                is_accepted = True
                return submitted

    return submit_part

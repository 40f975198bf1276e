"""The base of all services: checks, limits and the end of a service."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ortolan.errors import OrtolanError

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.serving.worker import Worker

__all__ = ["MAX_QUEUE", "BaseService"]

MAX_QUEUE = 1 << 16
"""Maximum length of the queue."""


class BaseService:
    """A loaded model with its own thread. Any thread and any event loop may use it.

    Leaving the `with` block finishes all accepted requests, or cancels them if the block raised. A
    service that is dropped without `close` finishes them, too; its tickets stay valid.

    Args:
        engine: of the model.
        worker: runs it.
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

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        self._engine.check_process()
        try:
            self._worker.check_open()
            yield
        except OrtolanError as error:
            self._worker.count_refused(error.code)
            raise

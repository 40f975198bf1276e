"""A queue that knows its length, in every service of the tests.

`SimpleQueue.qsize` of Python 3.13.0 is wrong once its buffer has wrapped around.
"""

from queue import SimpleQueue
from typing import Any

from ortolan.runtime.serving import worker


class CountedQueue:
    """A `SimpleQueue` with a `qsize` that is right."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._put: list[None] = []
        self._got: list[None] = []

    def put(self, item: Any) -> None:
        # before: who takes it at once must not see fewer than none
        self._put.append(None)
        self._queue.put(item)

    def get(self) -> Any:
        item = self._queue.get()
        self._got.append(None)
        return item

    def empty(self) -> bool:
        return self._queue.empty()

    def qsize(self) -> int:
        return len(self._put) - len(self._got)


def install() -> None:
    """Let services that are made from now on use it."""
    setattr(worker, "SimpleQueue", CountedQueue)  # noqa: B010 - a type checker sees a type

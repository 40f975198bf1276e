"""Signals from the thread of a service to the threads and tasks that wait for its results.

A thread waits on a condition, a task on a future of its loop. The worker wakes both under the one
lock of the service: threads directly, and all tasks of a loop by a single call into that loop.
"""

import threading
import time
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

Woken = dict[AbstractEventLoop, list["Future[None]"]]
"""Futures to resolve, by event loop."""


class Signal:
    """Wakes threads and tasks."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._condition = threading.Condition(lock)
        self._futures: set[Future[None]] = set()

    def wait(self, poll: Callable[[], T | None], timeout: float | None = None) -> T:
        """Block until `poll`, called with the lock after each signal, returns a value."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while (value := poll()) is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._condition.wait(left)
        return value

    async def awaited(self, poll: Callable[[], T | None]) -> T:
        """Let this task wait until `poll`, called with the lock after each signal, returns a value.

        The loop runs other tasks meanwhile.
        """
        while True:
            with self._lock:
                value = poll()
                if value is not None:
                    return value
                future: Future[None] = get_running_loop().create_future()
                self._futures.add(future)
            try:
                await future
            finally:
                with self._lock:
                    self._futures.discard(future)

    def send(self, woken: Woken) -> None:
        """Wake waiting threads, and add waiting tasks to `woken`, for `wake`. Needs the lock."""
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

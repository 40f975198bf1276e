"""Signal: what threads and tasks wait for, until one thread says that it has come.

Everything happens under one lock, which the thread that does the work takes once for all signals:
it wakes threads itself, and the tasks of each event loop by a single call into that loop.
"""

import threading
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["Signal", "Woken", "wake"]

Woken = dict[AbstractEventLoop, list["Future[None]"]]
"""Futures of tasks that are to go on, by their loops."""


class Signal:
    """Waited for and given with the lock held.

    Args:
        lock: of everything that the waiting is about.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self._futures: set[Future[None]] = set()

    def wait(self, timeout: float | None) -> None:
        """Let this thread wait, without the lock meanwhile; it may wake for nothing."""
        self._condition.wait(timeout)

    def future(self) -> "Future[None]":
        """What a task of the running loop awaits, without the lock; then `forget` it."""
        future: Future[None] = get_running_loop().create_future()
        self._futures.add(future)
        return future

    def forget(self, future: "Future[None]") -> None:
        """A task waits no longer."""
        self._futures.discard(future)

    def give(self, woken: Woken) -> None:
        """Wake the threads that wait, and add the tasks to those that `wake` will wake."""
        self._condition.notify_all()
        for future in self._futures:
            woken.setdefault(future.get_loop(), []).append(future)
        self._futures.clear()


def wake(woken: Mapping[AbstractEventLoop, list["Future[None]"]]) -> None:
    """Let tasks go on, by one call into each of their loops; without the lock."""
    for loop, futures in woken.items():
        with suppress(RuntimeError):  # a loop that is closed has no task that waits
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list["Future[None]"]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

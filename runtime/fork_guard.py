"""What a child made by `os.fork()` may do with the sessions of its parent: nothing.

Such a child has none of the threads that a session waits for: using one would wait forever, and
destroying it at exit crashes. The child refuses the first and never does the second.

Knows forks and objects. Does not know what the objects compute.
"""

import ctypes
import os
import weakref
from typing import Any, Protocol

from ortolan.runtime.errors import ForkedError

__all__ = ["Guarded", "check_process", "guard"]


class Guarded(Protocol):
    """Something with sessions."""

    def native_sessions(self) -> list[Any]:
        """The objects whose destruction would wait for threads."""


class _ForkGuard:
    """Counts forks, seen from the child, and keeps the child from destroying sessions."""

    def __init__(self) -> None:
        self.forks = 0
        self.guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_in_child)

    def _after_in_child(self) -> None:
        self.forks += 1
        for each in list(self.guarded):
            for session in each.native_sessions():
                # one reference too many: the destructor would join threads that are not there
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


_guard = _ForkGuard()


def guard(guarded: Guarded) -> int:
    """Watch over sessions from now on; returns what `check_process` wants to know."""
    _guard.guarded.add(guarded)
    return _guard.forks


def check_process(forks: int) -> None:
    """Refuse to go on in a process that was forked since `guard` gave that number.

    Raises:
        ForkedError: always then.
    """
    if forks != _guard.forks:
        raise ForkedError(
            "model: expected the process that loaded it, got a child made by os.fork(). "
            "Load the model in the child, or start children with the method 'spawn'."
        )

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
    """Something with sessions.

    Attributes:
        is_stranded: whether this process is a child of the one that the sessions work in.
    """

    is_stranded: bool

    def native_sessions(self) -> list[Any]:
        """The objects whose destruction would wait for threads."""


_guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()


def _strand() -> None:
    for each in list(_guarded):
        each.is_stranded = True
        for session in each.native_sessions():
            # one reference too many: the destructor would join threads that are not there
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_strand)


def guard(guarded: Guarded) -> None:
    """Watch over sessions from now on."""
    _guarded.add(guarded)


def check_process(guarded: Guarded) -> None:
    """Refuse to go on in a process that was forked since `guard`.

    Raises:
        ForkedError: always then.
    """
    if guarded.is_stranded:
        raise ForkedError(
            "model: expected the process that loaded it, got a child made by os.fork(). "
            "Load the model in the child, or start children with the method 'spawn'."
        )

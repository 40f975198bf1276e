"""Keeps a child of `os.fork()` from using its parent's onnxruntime sessions.

The child has none of the threads that a session waits for: running it would hang, and destroying
it at exit crashes. So running raises `ForkedError`, and the session is never destroyed.
"""

import ctypes
import os
import weakref
from typing import Any, Protocol

from ortolan.runtime.errors import ForkedError


class Guarded(Protocol):
    """An owner of sessions, which is stranded in a fork of the process that created them."""

    is_stranded: bool

    def native_sessions(self) -> list[Any]:
        """Sessions whose destructors would wait for threads."""


_guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()


def _strand() -> None:
    for owner in list(_guarded):
        owner.is_stranded = True
        for session in owner.native_sessions():
            # leak a reference: the destructor would join threads that do not exist here
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_strand)


def guard(guarded: Guarded) -> None:
    """Mark the owner as stranded in every child that is forked from now on."""
    _guarded.add(guarded)


def check_process(guarded: Guarded) -> None:
    """Check that this process is not a fork of the one that called `guard`."""
    if guarded.is_stranded:
        raise ForkedError(
            "A child of os.fork() cannot use a model that its parent loaded. "
            "Load the model in the child, or start children with the method 'spawn'."
        )

"""Keeps native code from returning into an interpreter that ends.

Before Python 3.14, a thread that comes back from a library by then is ended by unwinding its stack.
onnxruntime, llguidance and soxr do not allow that and crash the process. So the exit waits for
their calls in progress, and threads that begin another one sleep:

    daemon thread   call ▒▒▒▒▒▒▒▒│ next call: sleeps
    main thread     ───── exit ──┴─ ends
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_condition = threading.Condition()
_callers = set[int]()
_is_ending = False


@contextmanager
def native_call() -> Iterator[None]:
    """Run a call of native code that the exit waits for; also a decorator."""
    thread = threading.get_ident()
    if thread in _callers:
        yield
        return
    with _condition:
        is_late = _is_ending and threading.current_thread() is not threading.main_thread()
        if not is_late:
            _callers.add(thread)
    if is_late:
        threading.Event().wait()  # until the process ends
    try:
        yield
    finally:
        with _condition:
            _callers.discard(thread)
            if _is_ending:
                _condition.notify_all()


def _end() -> None:
    global _is_ending
    with _condition:
        _is_ending = True
        _condition.wait_for(lambda: not _callers)


def _start_over() -> None:
    """Forget the calls of threads that a child of os.fork() does not have."""
    global _condition
    _condition = threading.Condition()
    _callers.clear()


# callbacks run in reverse order: services close before
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)

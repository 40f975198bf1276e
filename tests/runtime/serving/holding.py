"""Keeps a service from going on, for tests of what happens meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def held(service: Any) -> Iterator[Any]:
    """Keep the worker of an idle service from a second round; yield its queue of commands.

    It takes commands once, and computes one round with them.
    """
    worker = service._worker
    take, gate = worker._take_commands, threading.Event()

    def take_later(*, is_busy: bool) -> Any:
        gate.wait(60)
        return take(is_busy=is_busy)

    with patch.object(worker, "_take_commands", take_later):
        try:
            yield worker._commands
        finally:
            gate.set()

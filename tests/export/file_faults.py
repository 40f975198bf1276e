"""File operations that fail, or that a process dies at."""

import io
import os
from collections.abc import Callable
from typing import Any

import pytest

OPERATIONS = ("open", "fsync", "rename", "mkdir", "unlink", "rmdir")


class Killed(BaseException):
    """The process is dead: no file operation works any more, whatever is tried."""


class Faults:
    """Counts file operations, and lets one of them fail.

    Args:
        at: which one, from 1.
        error: what it raises. After `Killed` every later one raises it too.
    """

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.count = 0
        self._at = at
        self._error = error

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in OPERATIONS:
            patch.setattr(os, name, self._failing(getattr(os, name)))
        patch.setattr(io, "open", self._failing(io.open))

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            error = self._error()
            if self.count == self._at or (isinstance(error, Killed) and self.count > self._at):
                raise error
            return function(*args, **kwargs)

        return call

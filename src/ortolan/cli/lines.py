"""Progress of a long command as lines, where nothing can be drawn."""

import sys
import threading
import time
from types import TracebackType

SECONDS = 10.0
"""Seconds between two lines."""


class ProgressLines:
    """Prints a line about the current step on stderr every `SECONDS`, from a thread of its own.

    A step may report nothing for minutes; the lines come all the same.
    """

    def __init__(self, command: str, *, seconds: float = SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._lock = threading.Lock()
        self._began = self._step_began = time.monotonic()
        self._step, self._done, self._total = "", 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, name="ortolan-progress", daemon=True)
        self._thread.start()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Note that `done` of `total` of a step are done."""
        with self._lock:
            if step != self._step:
                self._step, self._step_began = step, time.monotonic()
            self._done, self._total = done, total

    def close(self) -> None:
        """Print no more lines."""
        self._ended.set()
        self._thread.join()

    def line(self) -> str:
        """What is being done, since when, and an estimate of how long the step still takes."""
        with self._lock:
            step, done, total, began = self._step, self._done, self._total, self._step_began
        now = time.monotonic()
        words = [f"{self._command}: {step or 'starting'}"]
        if 0 < done < total:
            left = (now - began) * (total - done) / done
            words.append(f"{done / total:.0%}, about {_time(left)} left of this step")
        words.append(f"{_time(now - self._began)} so far")
        return ", ".join(words)

    def _print(self) -> None:
        while not self._ended.wait(self._seconds):
            print(self.line(), file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressLines":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

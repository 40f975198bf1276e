"""Progress of a long command on stderr: bars on a terminal, lines elsewhere."""

import sys
import threading
import time
from typing import Any

from tqdm import tqdm

SECONDS = 10.0
"""Seconds between two lines."""


def progress(command: str) -> "ProgressBars | ProgressLines":
    """Bars if stderr is a terminal; otherwise a line every ten seconds."""
    return ProgressBars() if sys.stderr.isatty() else ProgressLines(command)


class ProgressBars:
    """A bar per step."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of a step are done."""
        if step != self._step or self._bar is None:
            self.close()
            self._step = step
            self._bar = tqdm(
                total=total,
                desc=f"{step:<9}",
                bar_format="{desc} {bar:30} {percentage:3.0f}% {elapsed}",
            )
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class ProgressLines:
    """A line about the current step every few seconds, printed by a thread.

    A step may report nothing for minutes; the thread prints regardless.
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
        """Record that `done` of `total` units of a step are done."""
        with self._lock:
            if step != self._step:
                self._step, self._step_began = step, time.monotonic()
            self._done, self._total = done, total

    def __enter__(self) -> "ProgressLines":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def line(self) -> str:
        """The step, an estimate of its remaining time, and the time so far."""
        with self._lock:
            step, done, total, began = self._step, self._done, self._total, self._step_began
        now = time.monotonic()
        parts = [f"{self._command}: {step or 'starting'}"]
        if 0 < done < total:
            left = (now - began) * (total - done) / done
            parts.append(f"{done / total:.0%}, about {duration(left)} left of this step")
        parts.append(f"{duration(now - self._began)} so far")
        return ", ".join(parts)

    def _print(self) -> None:
        while not self._ended.wait(self._seconds):
            print(self.line(), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds for a person: `90 s`, `5 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

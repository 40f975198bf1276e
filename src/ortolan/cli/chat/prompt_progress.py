"""The progress of a prompt, as a line on the terminal until the answer begins."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

DELAY_S = 0.3
"""Seconds before the line appears. Shorter prompts would only make it flicker."""

INTERVAL_S = 0.2
"""Seconds between two updates of the line."""


class PromptProgress:
    """Draws the progress of a prompt on stderr, from a thread of its own, and removes it.

    A part of a prompt may take seconds; the clock goes on meanwhile. Nothing is drawn where stderr
    is no terminal.

    Args:
        progress: returns how many tokens of the prompt are done, and how many there are.
    """

    def __init__(self, progress: Callable[[], tuple[int, int]]) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._drawn = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def end(self) -> None:
        """Remove the line. A second time has no effect."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._drawn:
                # all of it: the terminal may have echoed a key after the line
                _write("\r" + " " * _columns() + "\r")

    def _draw(self) -> None:
        delay = DELAY_S
        while not self._ended.wait(delay):
            done, total = self._progress()
            seconds = time.monotonic() - self._began
            line = f"reading the prompt: {done:,} of {total:,} tokens, {seconds:.0f} s"
            line = line[: _columns()]
            _write("\r" + line.ljust(len(self._drawn)))
            self._drawn, delay = line, INTERVAL_S

    def __enter__(self) -> "PromptProgress":
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, name="ortolan-waiting", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


def _columns() -> int:
    """One less than there are, or the terminal would go on to the next line."""
    return shutil.get_terminal_size().columns - 1


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()

"""The progress of a prompt, as a line on the terminal until the answer begins."""

import sys
import threading
import time
from collections.abc import Callable

from ortolan.cli.progress import terminal_columns, write

DELAY_S = 0.3
"""Seconds before the line appears; for shorter prompts it would only flicker."""

INTERVAL_S = 0.2
"""Seconds between updates."""


class PromptProgress:
    """Draws the progress of a prompt on stderr, from a thread, and removes it.

    A thread keeps the clock running while a chunk of the prompt takes seconds. Nothing is drawn if
    stderr is not a terminal.
    """

    def __init__(self, progress: Callable[[], tuple[int, int]]) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._drawn = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def end(self) -> None:
        """Remove the line. Further calls have no effect."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._drawn:
                # clear the whole row: the terminal may have echoed a key after the line
                write("\r" + " " * terminal_columns() + "\r")

    def __enter__(self) -> "PromptProgress":
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, name="ortolan-prompt", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _draw(self) -> None:
        delay = DELAY_S
        while not self._ended.wait(delay):
            done, total = self._progress()
            seconds = time.monotonic() - self._began
            line = f"reading the prompt: {done:,} of {total:,} tokens, {seconds:.0f} s"
            line = line[: terminal_columns()]
            write("\r" + line.ljust(len(self._drawn)))
            self._drawn, delay = line, INTERVAL_S

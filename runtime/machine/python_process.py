"""Starts Python in a subprocess."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO


@contextmanager
def python_process(
    *arguments: str,
    stderr: int | IO[str],
    stdin: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a Python that imports from the same places as this one. Kill it on the way out."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with subprocess.Popen(
        # -P: never import from the working directory; a frozen program would not know the option
        [sys.executable, *([] if hasattr(sys, "frozen") else ["-P"]), *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # after Ctrl-C, for example; does nothing to a process that has ended

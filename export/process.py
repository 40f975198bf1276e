"""Python in a process of its own: its memory is not that of the export."""

import os
import subprocess
import sys
from collections.abc import Callable
from tempfile import TemporaryFile


class ProcessError(Exception):
    """The last line that a process wrote of its errors."""


def run_python(*arguments: str, told: Callable[[str], None]) -> None:
    """Run Python, which imports from where this process does, until it ends.

    Args:
        arguments: of its command line.
        told: each line that it prints. What this raises ends the process.

    Raises:
        ProcessError: it failed.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            # -P: the working directory is no place to import from
            [sys.executable, "-P", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": path},
            encoding="utf-8",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                told(line)
            status = process.wait()
        finally:
            process.kill()  # on Ctrl-C, say; of no effect when it has ended
        if status != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            raise ProcessError(lines[-1] if lines else f"exit status {status}")

"""Runs Python in a subprocess, so that its memory is not that of the export."""

from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from tempfile import TemporaryFile

from ortolan.runtime.machine.python_process import python_process


class ProcessError(Exception):
    """A subprocess failed. The message is the last line it wrote to standard error."""


def run_python(*arguments: str, on_line: Callable[[str], None]) -> None:
    """Run Python, importing from the same places as this process, until it ends."""
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with python_process(*arguments, stderr=errors) as process:
            with TextIOWrapper(process.stdout or BytesIO(), encoding="utf-8") as lines:
                for line in lines:
                    on_line(line)
            status = process.wait()
        if status != 0:
            errors.seek(0)
            report = errors.read().strip().splitlines()
            raise ProcessError(report[-1] if report else f"exit status {status}")

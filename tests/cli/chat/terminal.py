"""`ortolan chat` in a subprocess, through a pipe or at a pseudo-terminal."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.runtime.test_import import SOURCE

ENVIRONMENT = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "TERM": "dumb"}

DELAYED = (
    "import ortolan.cli.progress as p; p.DRAW_S = 60; "
    "p.PROMPT_FIRST_S = {}; "
    "from ortolan.cli import main; main()"
)


def pipe(bundle: Path, lines: str, *options: str) -> "subprocess.CompletedProcess[bytes]":
    """Chat through a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "ortolan", "chat", str(bundle), *options],
        input=lines.encode(),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )


class Terminal:
    """A chat at a terminal.

    Args:
        bundle: bundle to chat with.
        options: options of the command.
        folder: working directory and home of the history.
        columns: width of the terminal.
        delay_s: seconds before the progress of a prompt is shown.
        kind: value of TERM; readline reads no pastes from a dumb one.
    """

    def __init__(
        self,
        bundle: Path,
        *options: str,
        folder: Path,
        columns: int = 80,
        kind: str = "dumb",
        delay_s: int = 60,
    ) -> None:
        import pty
        import termios

        self.output = ""
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        self.program = subprocess.Popen(
            [sys.executable, "-c", DELAYED.format(delay_s), "chat", str(bundle), *options],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
            start_new_session=True,
            env={**ENVIRONMENT, "TERM": kind, "XDG_STATE_HOME": f"{folder}"},
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def paste(self, text: str) -> None:
        carriages = text.replace("\n", "\r")
        self.type(f"\x1b[200~{carriages}\x1b[201~")

    def ask(self, text: str) -> None:
        """Type a line at the next prompt."""
        self.wait_for("> ")
        self.type(f"{text}\n")
        assert self.wait_for("\r\n").endswith(text)

    def wait_for(self, text: str, *, timeout_s: float = 30) -> str:
        """Remove the output up to a text, and return it."""
        end = time.monotonic() + timeout_s
        while text not in self.output:
            left = end - time.monotonic()
            assert left > 0, self.output
            if select.select([self._ours], [], [], left)[0]:
                self._read()
        before, _, self.output = self.output.partition(text)
        return before

    def wait_for_any(self) -> None:
        while not self.output.strip():
            self._read()

    def interrupt_prompt(self) -> None:
        """Type Ctrl-C at a prompt; Python misses it before it waits for a key."""
        time.sleep(0.3)
        self.type("\x03")

    def leave(self) -> None:
        """Type Ctrl-D at the next prompt."""
        self.wait_for("> ")
        self.type("\x04")
        assert self.program.wait(30) == 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._ours)

    def _read(self) -> None:
        self.output += os.read(self._ours, 65536).decode(errors="replace")


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # a shell ignores it for jobs in the background, such as these tests
    signal.signal(signal.SIGINT, signal.SIG_DFL)

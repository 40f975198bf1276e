"""`ortolan chat`, through a pipe and at a terminal."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.runtime.chat.test_chat import made
from tests.runtime.test_import import SOURCE

from ortolan.cli import cli
from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.manifest import Tokens

ENVIRONMENT = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "TERM": "dumb"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("command")).bundle.path


def chat(bundle: Path, lines: str, *options: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "ortolan", "chat", str(bundle), *options],
        input=lines.encode(),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_lines_of_a_pipe_are_questions_and_commands(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    lines = f"Hi.\n\nAnd \\\nso?\n/save {file}\n/reset\n/load {file}\n/help\n/exit\nnever\n"
    done = chat(bundle, lines, "-n", "5", "--system", "S")
    assert done.returncode == 0, done.stderr
    messages = json.loads(file.read_text())["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "And \nso?"
    answers = [messages[2]["content"], messages[4]["content"]]
    assert done.stdout.decode() == "".join(f"{answer}\n" for answer in answers)
    said = done.stderr.decode()
    assert "5 messages saved\na new conversation\n5 messages loaded\n/save FILE" in said


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("/frob", "/frob: expected a command, got none. Try /help."),
        ("/save", "/save: expected a file, got none."),
        ("/load /nowhere/at/all", "/nowhere/at/all: expected a readable file"),
        ("/save /nowhere/at/all", "/nowhere/at/all: expected to write a file"),
        (b"\xff", "standard input: expected UTF-8 text, got byte 0xff"),
        ("a" * 2000, "context: expected at most 1100 tokens"),
    ],
)
def test_a_mistake_in_a_pipe_ends_the_program(
    bundle: Path, lines: str | bytes, message: str
) -> None:
    with pytest.raises(OrtolanError) as caught:
        CliRunner().invoke(cli, ["chat", str(bundle)], input=lines, catch_exceptions=False)
    assert str(caught.value).startswith(message)


def test_a_bundle_without_a_template_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = chat(made(tmp_path, {}).bundle.path, "Hi.")
    assert done.returncode == 2
    assert done.stderr.startswith(b"ortolan: chat: expected a bundle with chat_template.jinja")


# --- at a terminal ----------------------------------------------------------------------------


class Terminal:
    """A program at a terminal."""

    def __init__(self, *arguments: str) -> None:
        import pty

        self.output = ""
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "ortolan", "chat", *arguments]
        self.program = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT,
            start_new_session=True, preexec_fn=lambda: _take_terminal(0),
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, *, timeout_s: float = 30) -> str:
        """The output up to a text, which is taken away."""
        end = time.monotonic() + timeout_s
        while text not in self.output:
            left = end - time.monotonic()
            assert left > 0, self.output
            if select.select([self._ours], [], [], left)[0]:
                self.output += os.read(self._ours, 65536).decode(errors="replace")
        found, _, self.output = self.output.partition(text)
        return found

    def interrupt_prompt(self) -> None:
        """Type Ctrl-C where a line is read, which Python misses before it waits for a key."""
        time.sleep(0.3)
        self.type("\x03")

    def wait_for_any(self) -> None:
        """Wait until there is some output."""
        while not self.output.strip():
            self.output += os.read(self._ours, 65536).decode(errors="replace")

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._ours)


def _take_terminal(descriptor: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    # a shell starts its jobs in the background without it, and tests run in such
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_an_answer_and_at_an_empty_prompt_the_program(tmp_path: Path) -> None:
    endless = made(tmp_path / "endless", tokens=Tokens(), context_length=50_000)
    terminal = Terminal(str(endless.bundle.path))
    try:
        terminal.wait_for("> ")
        terminal.type("Hi.\n")
        terminal.wait_for("Hi.\r\n")
        terminal.wait_for_any()
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("> ")
        terminal.type("/frob\n")
        terminal.wait_for("Try /help.")  # goes on, since somebody can correct it
        terminal.wait_for("> ")
        terminal.type(f"/save {tmp_path / 'kept.json'}\n")
        terminal.wait_for("2 messages saved")
        terminal.wait_for("> ")
        terminal.type("unfinished")
        terminal.wait_for("unfinished")
        terminal.interrupt_prompt()
        terminal.wait_for("> ")
        assert terminal.program.poll() is None
        terminal.interrupt_prompt()
        assert terminal.program.wait(30) == 0
    finally:
        terminal.close()
    assert (tmp_path / "kept.json").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_d_leaves(bundle: Path) -> None:
    terminal = Terminal(str(bundle))
    try:
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.program.wait(30) == 0
    finally:
        terminal.close()

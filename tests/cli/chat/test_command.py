"""`ortolan chat`, through a pipe and at a terminal."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.runtime.chat.tiny_chat import chat_model
from tests.runtime.test_import import SOURCE
from tests.runtime.tiny_decoder import CONTEXT

from ortolan.cli import cli
from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.manifest import Tokens

ENVIRONMENT = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "TERM": "dumb"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("command")).bundle.path


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
    assert "5 messages saved\nnew conversation\n5 messages loaded\n/regenerate" in said


def test_block_of_a_pipe_is_one_question_whatever_its_lines(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    lines = f'"""\nOne\n/reset\n\nfour \\\n"""\n /exit?\n/save {file}\n'
    done = chat(bundle, lines, "-n", "2")
    assert done.returncode == 0, done.stderr
    contents = [message["content"] for message in json.loads(file.read_text())["messages"]]
    assert contents[::2] == ["One\n/reset\n\nfour \\", " /exit?"]


def test_last_question_is_answered_once_more_as_it_is_set(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    lines = f"Hi.\n/set\n/set temperature 5\n/set seed 1\n/regenerate\n/stats\n/save {file}\n"
    done = chat(bundle, lines, "-n", "5", "--top-k", "9")
    assert done.returncode == 0, done.stderr
    question, answer = json.loads(file.read_text())["messages"]
    first, second = done.stdout.decode().splitlines()
    assert question["content"] == "Hi."
    assert answer["content"] == second != first
    said = done.stderr.decode()
    assert re.search(
        r"temperature +0.0\n(.*\n)*seed +none\ntop_k +9\n(.*\n)*temperature 5.0\nseed 1\n", said
    )
    assert re.search(r"answer +5 tokens, .* length\n", said)
    assert re.search(rf"context +\d+ of {CONTEXT:,} tokens\nmessages +2\n", said)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("/frob", "/frob .* /help"),
        ("/save", "/save FILE"),
        ("/load /nowhere/at/all", "/nowhere/at/all"),
        ("/save /nowhere/at/all", "/nowhere/at/all"),
        ("/regenerate", "no answer"),
        ("/stats", "no answer"),
        ("/reset now", "'now'"),
        ("/regenarate", "Did you mean /regenerate"),
        ("/set frob 1", "temperature, .*frob"),
        ("/set top_k", "/set top_k VALUE"),
        ("/set top-k 1.5", "/set top_k: '1.5'"),
        ("/set top_p 2", "top_p.* 2.0"),
        (b"\xff", "0xff"),
        ("a" * 2000, "1100 tokens"),
    ],
)
def test_a_mistake_in_a_pipe_ends_the_program(
    bundle: Path, lines: str | bytes, message: str
) -> None:
    with pytest.raises(OrtolanError, match=message):
        CliRunner().invoke(cli, ["chat", str(bundle)], input=lines, catch_exceptions=False)


def test_a_bundle_without_a_template_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = chat(chat_model(tmp_path, {}).bundle.path, "Hi.")
    assert done.returncode == 2
    assert b"chat_template.jinja" in done.stderr


# --- at a terminal ----------------------------------------------------------------------------

PASTES = "\x1b[?2004h"
"""Readline says so to a terminal when it is ready for a paste."""

UP = "\x1b[A"

DELAYED = (
    "import ortolan.cli.chat.prompt_progress as p; p.DELAY_S = {}; "
    "from ortolan.cli import main; main()"
)


class Terminal:
    """A chat at a terminal.

    Args:
        arguments: of the command.
        folder: where it runs, and keeps its history.
        columns: width of the terminal.
        delay_s: seconds after which the progress of a prompt is shown.
        kind: of the terminal; readline takes no pastes from a dumb one.
    """

    def __init__(
        self,
        *arguments: str,
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
            [sys.executable, "-c", DELAYED.format(delay_s), "chat", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
            start_new_session=True,
            env={**ENVIRONMENT, "TERM": kind, "XDG_STATE_HOME": f"{folder}"},
            preexec_fn=lambda: _take_terminal(0),
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def paste(self, text: str) -> None:
        """What a terminal sends for a text with these lines."""
        carriages = text.replace("\n", "\r")
        self.type(f"\x1b[200~{carriages}\x1b[201~")

    def ask(self, text: str) -> None:
        """Type a line at the next prompt."""
        self.wait_for("> ")
        self.type(f"{text}\n")
        assert self.wait_for("\r\n").endswith(text)

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

    def leave(self) -> None:
        """Type Ctrl-D at the next prompt."""
        self.wait_for("> ")
        self.type("\x04")
        assert self.program.wait(30) == 0

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


needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def needs_gnu_readline() -> None:
    if "libedit" in (pytest.importorskip("readline").__doc__ or ""):
        pytest.skip("needs a Python with GNU readline")


@needs_terminal
def test_ctrl_c_stops_an_answer_and_leaves_nothing_but_the_prompt(tmp_path: Path) -> None:
    endless = chat_model(tmp_path / "endless", tokens=Tokens(), context_length=50_000)
    terminal = Terminal(str(endless.bundle.path), folder=tmp_path)
    try:
        terminal.ask("Hi.")
        terminal.wait_for_any()
        terminal.type("\x03\x03\x03")
        terminal.wait_for("[stopped]")
        terminal.ask("/frob")
        terminal.wait_for("Try /help.")  # goes on, since somebody can correct it
        terminal.ask("/save kept.json")
        terminal.wait_for("2 messages saved")
        terminal.wait_for("> ")
        terminal.type("unfinished")
        terminal.wait_for("unfinished")
        terminal.interrupt_prompt()
        assert "Leave" not in terminal.wait_for("> ")
        terminal.interrupt_prompt()
        terminal.wait_for("Leave with /exit or Ctrl-D.")
        terminal.leave()
    finally:
        terminal.close()
    assert (tmp_path / "kept.json").is_file()


@needs_terminal
def test_paste_of_several_lines_is_one_question_and_one_entry_of_the_history(
    bundle: Path, tmp_path: Path
) -> None:
    needs_gnu_readline()
    lines = "\n".join(["ten lines", "/reset", *map(str, range(8))])
    for session in (1, 2):
        terminal = Terminal(str(bundle), "-n", "3", folder=tmp_path, kind="xterm")
        try:
            terminal.wait_for(PASTES)
            if session == 1:
                terminal.paste(lines)
            else:
                terminal.type(3 * UP)  # /exit, /save, and the question
            terminal.wait_for("7")
            terminal.type("\r")
            terminal.wait_for(PASTES)
            terminal.type(f"/save {session}.json\r")
            terminal.wait_for("2 messages saved")
            terminal.wait_for(PASTES)
            terminal.type(2 * UP)  # /save, and the question
            terminal.wait_for("7")
            terminal.type("\x15/exit\r")
            assert terminal.program.wait(30) == 0
        finally:
            terminal.close()
        question, _ = json.loads((tmp_path / f"{session}.json").read_text())["messages"]
        assert question["content"] == lines


@needs_terminal
def test_lines_that_were_typed_before_the_prompt_wait_there_as_one_question(
    bundle: Path, tmp_path: Path
) -> None:
    needs_gnu_readline()
    terminal = Terminal(str(bundle), "-n", "3", folder=tmp_path)
    try:
        terminal.type("one\n/exit\nthree\n")
        terminal.wait_for("> one")
        terminal.type(" more\\\nfour\n")
        terminal.ask("/save kept.json")
        terminal.wait_for("2 messages saved")
        terminal.leave()
    finally:
        terminal.close()
    question, _ = json.loads((tmp_path / "kept.json").read_text())["messages"]
    assert question["content"] == "one\n/exit\nthree more\nfour"


@needs_terminal
def test_long_prompt_shows_how_far_it_is_until_its_answer_begins(tmp_path: Path) -> None:
    long = chat_model(tmp_path / "long", tokens=Tokens(), context_length=50_000)
    kept = {"role": "user", "content": "x" * 3_000}, {"role": "assistant", "content": "y"}
    conversation = long.conversation()
    conversation.messages = list(kept)
    conversation.save(tmp_path / "kept.json")
    terminal = Terminal(str(long.bundle.path), "-n", "3", folder=tmp_path, delay_s=0)
    try:
        terminal.ask("/load kept.json")
        terminal.wait_for("2 messages loaded")
        terminal.ask("Hi.")
        terminal.wait_for("\rreading the prompt: ")
        progress = terminal.wait_for(" tokens, ")
        assert re.fullmatch(r"[\d,]+ of 3,0\d\d", progress)
        assert re.search(r"\r +\r[^\r]+\r\n", terminal.wait_for("The answer reached"))
        terminal.leave()
    finally:
        terminal.close()


@needs_terminal
def test_answer_is_wrapped_at_words_on_a_terminal_alone_and_nothing_is_kept_if_asked(
    tmp_path: Path,
) -> None:
    spaced = chat_model(tmp_path / "spaced", tokens=Tokens(), context_length=2000)
    options = (str(spaced.bundle.path), "-n", "400", "--temperature", "5", "--seed", "1")
    terminal = Terminal(*options, "--no-history", folder=tmp_path, columns=150)
    try:
        terminal.ask("Hi.")
        shown = terminal.wait_for("The answer reached").replace("\r\n", "\n")
        terminal.leave()
    finally:
        terminal.close()
    plain = chat(spaced.bundle.path, "Hi.\n", *options[1:]).stdout.decode()
    assert not (tmp_path / "ortolan").exists()
    assert "\n" in shown.rstrip("\n")
    assert shown.split() == plain.split()
    assert all(len(line) <= 150 or " " not in line for line in shown.splitlines())

"""`ortolan chat`, through a pipe and at a terminal."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.chat.terminal import Terminal, pipe
from tests.runtime.chat.tiny_chat import chat_model
from tests.runtime.tiny_decoder import CONTEXT

from ortolan.cli import cli
from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.manifest import Tokens

PASTES = "\x1b[?2004h"
"""Readline sends this when it is ready for a paste."""

UP = "\x1b[A"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("command")).bundle.path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a model that never ends an answer."""
    folder = tmp_path_factory.mktemp("endless")
    return chat_model(folder, tokens=Tokens(), context_length=50_000).bundle.path


def test_a_pipe_has_one_question_or_command_per_line_or_block(bundle: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    lines = (
        f"Hi.\n\nAnd \\\nso?\n/save {first}\n/reset\n/load {first}\n/help\n/reset\n"
        f'"""\nOne\n/reset\n\nfour \\\n"""\n /exit?\n/save {second}\n/exit\nnever\n'
    )
    done = pipe(bundle, lines, "-n", "5", "--system", "S")
    assert done.returncode == 0, done.stderr
    saved = [json.loads(file.read_text())["messages"] for file in (first, second)]
    for messages in saved:
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert saved[0][3]["content"] == "And \nso?"
    assert [saved[1][n]["content"] for n in (1, 3)] == ["One\n/reset\n\nfour \\", " /exit?"]
    answers = [messages[n]["content"] for messages in saved for n in (2, 4)]
    assert done.stdout.decode() == "".join(f"{answer}\n" for answer in answers)
    assert "5 messages saved\nnew conversation\n5 messages loaded\n/regen" in done.stderr.decode()


def test_an_answer_is_generated_again_with_other_options(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    lines = f"Hi.\n/set\n/set temperature 5\n/set seed 1\n/regenerate\n/stats\n/save {file}\n"
    done = pipe(bundle, lines, "-n", "5", "--top-k", "9")
    assert done.returncode == 0, done.stderr
    question, answer = json.loads(file.read_text())["messages"]
    first, second = done.stdout.decode().splitlines()
    assert question["content"] == "Hi."
    assert answer["content"] == second != first
    said = done.stderr.decode()
    options = r"temperature +0.0\n(.*\n)*seed +none\ntop_k +9\n(.*\n)*temperature 5.0\nseed 1\n"
    assert re.search(options, said)
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


def test_a_bundle_without_a_template_is_rejected_before_input_is_read(tmp_path: Path) -> None:
    done = pipe(chat_model(tmp_path, {}).bundle.path, "Hi.")
    assert done.returncode == 2
    assert b"chat_template.jinja" in done.stderr


needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def needs_gnu_readline() -> None:
    if "libedit" in (pytest.importorskip("readline").__doc__ or ""):
        pytest.skip("needs a Python with GNU readline")


@needs_terminal
def test_ctrl_c_stops_an_answer_or_clears_the_prompt(endless: Path, tmp_path: Path) -> None:
    with Terminal(endless, folder=tmp_path) as chat:
        chat.ask("Hi.")
        chat.wait_for_any()
        chat.type("\x03\x03\x03")
        chat.wait_for("[stopped]")
        chat.ask("/frob")
        chat.wait_for("Try /help.")  # a mistake does not end a chat at a terminal
        chat.ask("/save saved.json")
        chat.wait_for("2 messages saved")
        chat.wait_for("> ")
        chat.type("unfinished")
        chat.wait_for("unfinished")
        chat.interrupt_prompt()
        assert "Leave" not in chat.wait_for("> ")
        chat.interrupt_prompt()
        chat.wait_for("Leave with /exit or Ctrl-D.")
        chat.leave()
    assert (tmp_path / "saved.json").is_file()


@needs_terminal
def test_a_paste_is_one_question_and_one_entry_of_the_history(bundle: Path, tmp_path: Path) -> None:
    needs_gnu_readline()
    lines = "\n".join(["ten lines", "/reset", *map(str, range(8))])
    for run in (1, 2):
        with Terminal(bundle, "-n", "3", folder=tmp_path, kind="xterm") as chat:
            chat.wait_for(PASTES)
            if run == 1:
                chat.paste(lines)
            else:
                chat.type(3 * UP)  # /exit, /save, and the question
            chat.wait_for("7")
            chat.type("\r")
            chat.wait_for(PASTES)
            chat.type(f"/save {run}.json\r")
            chat.wait_for("2 messages saved")
            chat.wait_for(PASTES)
            chat.type(2 * UP)  # /save, and the question
            chat.wait_for("7")
            chat.type("\x15/exit\r")
            assert chat.program.wait(30) == 0
        question, _ = json.loads((tmp_path / f"{run}.json").read_text())["messages"]
        assert question["content"] == lines


@needs_terminal
def test_lines_typed_before_the_prompt_wait_there_as_one_question(
    bundle: Path, tmp_path: Path
) -> None:
    needs_gnu_readline()
    with Terminal(bundle, "-n", "3", folder=tmp_path) as chat:
        chat.type("one\n/exit\nthree\n")
        chat.wait_for("> one")
        chat.type(" more\\\nfour\n")
        chat.ask("/save saved.json")
        chat.wait_for("2 messages saved")
        chat.leave()
    question, _ = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert question["content"] == "one\n/exit\nthree more\nfour"


@needs_terminal
def test_a_long_prompt_shows_its_progress_until_the_answer_begins(
    endless: Path, tmp_path: Path
) -> None:
    lines = f"{'x' * 3_000}\n/save saved.json\n"
    assert pipe(endless, lines.replace("saved", f"{tmp_path}/saved"), "-n", "1").returncode == 0
    with Terminal(endless, "-n", "3", folder=tmp_path, delay_s=0) as chat:
        chat.ask("/load saved.json")
        chat.wait_for("2 messages loaded")
        chat.ask("Hi.")
        chat.wait_for("\rreading the prompt: ")
        assert re.fullmatch(r"[\d,]+ of 3,0\d\d", chat.wait_for(" tokens, "))
        assert re.search(r"\r +\r[^\r]+\r\n", chat.wait_for("The answer reached"))
        chat.leave()


@needs_terminal
def test_answers_are_wrapped_on_a_terminal_only(endless: Path, tmp_path: Path) -> None:
    options = ("-n", "400", "--temperature", "5", "--seed", "1")
    with Terminal(endless, *options, "--no-history", folder=tmp_path, columns=150) as chat:
        chat.ask("Hi.")
        shown = chat.wait_for("The answer reached").replace("\r\n", "\n")
        chat.leave()
    plain = pipe(endless, "Hi.\n", *options).stdout.decode()
    assert not (tmp_path / "ortolan" / "chat_history").exists()
    assert "\n" in shown.rstrip("\n")
    assert shown.split() == plain.split()
    assert all(len(line) <= 150 or " " not in line for line in shown.splitlines())


@needs_terminal
def test_a_history_that_cannot_be_read_and_a_terminal_without_pastes_are_reported(
    bundle: Path, tmp_path: Path
) -> None:
    needs_gnu_readline()
    path = tmp_path / "ortolan" / "chat_history"
    path.parent.mkdir()
    path.write_text("something else")
    with Terminal(bundle, "-n", "3", folder=tmp_path) as chat:  # a dumb one
        said = chat.wait_for("> ")
        assert "Each pasted line is a question here" in said
        assert "chat_history" in said
        chat.type("Hi.\n")
        assert "chat_history" not in chat.wait_for("> ")
        chat.type("\x04")
        assert chat.program.wait(30) == 0
    assert path.read_text() == "something else"
    path.unlink()
    with Terminal(bundle, "-n", "3", folder=tmp_path, kind="xterm") as chat:
        assert "Each pasted line" not in chat.wait_for(PASTES)

"""What the command line prints, and the exit status it leaves, whatever happens within."""

import subprocess
import sys
from pathlib import Path

import pytest

from ortolan.cli.output import print_table

RUN = """
import sys, click
import ortolan.cli.doctor as doctor
from ortolan.cli import main

def body():
    {body}

doctor.command = click.Command("doctor", callback=body)
sys.argv = ["ortolan", *sys.argv[1:], "doctor"]
main()
"""

HOSTILE = "a\x1b[2Kb\x07\r\u202ec\u2028d\x9be\tf"


def run(
    body: str, *arguments: str, stdout: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(body=body), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )
    out, err = (written.decode() for written in (done.stdout or b"", done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_control_characters_are_shown_and_not_obeyed(stream: str) -> None:
    done = run(f"print({HOSTILE!r}, file=sys.{stream})")

    line = "\\x0d" if stream == "stdout" else "\r"  # progress goes over its line on stderr
    written = getattr(done, stream)
    assert written == f"a\\x1b[2Kb\\x07{line}\\u202ec\\u2028d\\x9be\tf\n"


def test_control_characters_of_an_error_are_shown() -> None:
    done = run(f"from ortolan.errors import OrtolanError; raise OrtolanError({HOSTILE!r})")

    assert "\x1b" not in done.stderr
    assert "\\x1b[2K" in done.stderr
    assert done.returncode == 2


def test_value_in_a_table_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("label", "cat\ndevice   PASS"), ("dog\ndevice", "PASS")])

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return 0", 0, ""),
        ("return 1", 1, ""),
        ("raise OSError(5, 'Input/output error')", 2, "Input/output error"),
        ("raise MemoryError", 2, "enough memory"),
        ("raise KeyError('x')", 3, "please report it"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_exit_status_says_who_is_to_act(body: str, status: int, said: str) -> None:
    done = run(body)

    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.split("\n")) == 2 if said else not done.stderr.strip()


def test_traceback_is_shown_on_request_and_changes_no_status() -> None:
    done = run("raise KeyError('x')", "--debug")

    assert done.returncode == 3
    assert "Traceback" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("print('x')", stdout=full.fileno())

    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1

"""Output streams and exit statuses of the command line, whatever a command does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortolan.cli.output import print_table

RUN = """
import sys, click
import ortolan.cli.machine as machine
from ortolan.cli import main

def body():
    {body}

machine.doctor_command = click.Command("doctor", callback=body)
sys.argv = ["ortolan", *sys.argv[1:], "doctor"]
main()
"""

HOSTILE = "a\x1b[2Kb\x07\r\u202ec\u2028d\x9be\tf"
ESCAPED = "a\\x1b[2Kb\\x07{}\\u202ec\\u2028d\\x9be\tf"


def run(
    body: str, *arguments: str, stdout: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-c", RUN.format(body=body), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )


def test_control_characters_are_escaped() -> None:
    done = run(f"print({HOSTILE!r}); print({HOSTILE!r}, file=sys.stderr)")
    assert done.stdout.decode() == ESCAPED.format("\\x0d") + "\n"
    # progress overwrites its line on stderr
    assert done.stderr.decode() == ESCAPED.format("\r") + "\n"


def test_control_characters_of_an_error_are_escaped() -> None:
    done = run(f"from ortolan.errors import OrtolanError; raise OrtolanError({HOSTILE!r})")
    assert b"\x1b" not in done.stderr
    assert b"\\x1b[2K" in done.stderr
    assert done.returncode == 2


def test_value_in_a_table_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([])  # such as the entities of a text that names none
    print_table([("label", "cat\ndevice   PASS"), ("dog\ndevice", "PASS")])
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("return 0", 0, ""),
        ("return 1", 1, ""),
        ("raise OSError(5, 'Input/output error')", 2, "Input/output error"),
        ("raise MemoryError", 2, "out of memory"),
        ("raise KeyError('x')", 3, "please report it"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_exit_status_tells_mistakes_from_bugs(body: str, status: int, message: str) -> None:
    done = run(body)
    said = done.stderr.decode()
    assert done.returncode == status
    assert message in said
    assert len(said.split("\n")) == 2 if message else not said.strip()


def test_traceback_is_shown_on_request_and_changes_no_status() -> None:
    done = run("raise KeyError('x')", "--debug")
    assert done.returncode == 3
    assert b"Traceback" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("print('x')", stdout=full.fileno())
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert "No space left on device" in line


def test_inspect_treats_a_folder_with_a_linked_manifest_as_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to("elsewhere")
    code = (
        "import sys; from ortolan.cli import main\n"
        "sys.argv = ['ortolan', 'inspect', sys.argv[1]]\n"
        "try: main()\nfinally: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env=os.environ, text=True, check=False)
    assert "manifest.json is a symbolic link" in done.stderr
    assert done.stdout == "False\n"

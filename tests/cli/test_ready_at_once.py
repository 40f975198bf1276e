"""First starts with a checkpoint that are killed, run at once, or find a full disk."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import REPOSITORY

from ortolan.cache import cache_folder, entries, remove
from ortolan.runtime import open_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and locks"),
]

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

MOMENTS = 20


@pytest.fixture
def chats(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny checkpoint with a chat template, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = shutil.copytree(checkpoint, tmp_path / "chats")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def start(checkpoint: Path, *prefix: str) -> "subprocess.Popen[bytes]":
    """Start a chat with one question, as the leader of a group of processes."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "ortolan", "chat", str(checkpoint), "-n", "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "src"},
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    out, err = process.communicate(b"What is it?\n", timeout=300)
    return process.returncode, out.decode(), err.decode()


def test_a_first_start_killed_at_any_moment_leaves_no_half_of_a_bundle(chats: Path) -> None:
    began = time.monotonic()
    status, expected, _ = finish(start(chats))
    whole_s = time.monotonic() - began
    assert status == 0
    (entry,) = entries()
    remove(entry.key)
    for moment in range(MOMENTS):
        process = start(chats)
        time.sleep(whole_s * (moment + 0.5) / MOMENTS)
        if moment % 2:
            os.killpg(process.pid, signal.SIGKILL)  # the export as well
        else:
            process.kill()
        finish(process)
        for found in entries():
            assert found.key == entry.key
            open_bundle(found.path, full_check=True)
            remove(found.key)
    status, answer, said = finish(start(chats))
    assert status == 0, said
    assert answer == expected
    assert os.listdir(cache_folder() / "bundles") == [entry.key]


def test_of_two_first_starts_one_exports_and_the_other_waits_for_it(chats: Path) -> None:
    results = [finish(process) for process in [start(chats), start(chats)]]
    assert [status for status, _, _ in results] == [0, 0], results
    assert results[0][1] == results[1][1]
    said = sorted(text.count("ortolan: exporting ") for _, _, text in results)
    assert said == [0, 1]
    assert sum("another process is exporting" in text for _, _, text in results) == 1
    assert len(os.listdir(cache_folder() / "bundles")) == 1


def test_the_export_ends_soon_after_its_parent_is_killed(chats: Path) -> None:
    process = start(chats)
    export = wait_for_export(process.pid)
    process.kill()
    finish(process)
    until = time.monotonic() + 60
    while export.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not export.exists()
    assert entries() == []


def wait_for_export(parent: int) -> Path:
    """The folder in /proc of the subprocess that exports."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    while True:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
                if int(status[1]) == parent and "ortolan.cli.ready" in command:
                    return folder
        time.sleep(0.05)

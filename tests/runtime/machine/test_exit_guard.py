"""A process that ends while daemon threads compute neither crashes nor hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.tiny_decoder import write_bundle

START = """
import sys, threading, time
from ortolan.runtime.machine.exit_guard import native_call

def start(work):
    threading.Thread(target=work, daemon=True).start()
"""

CALLS = """
def work():
    with native_call():
        with native_call():
            time.sleep(0.3)
        print("first")
    with native_call():
        print("second")

start(work)
time.sleep(0.1)
"""

MODEL = """
import ortolan
model = ortolan.load(sys.argv[1], threads=1)
for _ in range(3):
    start(lambda: [model.logits([5] * 1000) for _ in range(10**6)])
time.sleep(0.2)
"""

RESAMPLING = """
import numpy as np
from ortolan.runtime.inputs.audio import _Resampling
stream, silence = _Resampling(44_100, 16_000), np.zeros(1_000_000, np.float32)
start(lambda: [stream.next(silence) for _ in range(10**6)])
time.sleep(0.2)
"""

FORKED = """
import os
start(lambda: native_call().__enter__())
time.sleep(0.1)
child = os.fork()
if child == 0:
    sys.exit(7)  # runs what is registered for the exit
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(status)
"""


def run(code: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", START + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_exit_waits_for_a_call_and_no_other_begins() -> None:
    done = run(CALLS)
    assert (done.returncode, done.stdout) == (0, "first\n"), done.stderr


def test_a_model_that_computes_does_not_abort_the_exit(tmp_path: Path) -> None:
    done = run(MODEL, write_bundle(tmp_path / "bundle").path)
    assert done.returncode == 0, done.stderr


def test_a_sound_that_is_resampled_does_not_abort_the_exit() -> None:
    pytest.importorskip("soxr")
    done = run(RESAMPLING)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_wait_for_calls_of_its_parent() -> None:
    assert run(FORKED).returncode == 7

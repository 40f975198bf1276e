"""Services whose process exits, forks or collects garbage."""

import gc
import os
import subprocess
import sys
from typing import Any

import pytest

from ortolan.runtime.decoder import Decoder


def test_a_service_that_is_dropped_in_a_cycle_under_its_own_lock_ends(model: Decoder) -> None:
    service = model.serve(slots=2)
    ticket = service.submit("abc", max_new_tokens=9, ignore_eos=True)
    cycle: list[Any] = [service]
    cycle.append(cycle)
    lock = service._worker.lock
    del service, cycle
    with lock:  # the collector may run wherever something is allocated
        gc.collect()
    assert len(ticket.result(timeout=60).tokens) == 9


PROGRAM = """
import os, sys
from ortolan.runtime.loading import load
from ortolan.runtime.decoder import Decoder

service = load(sys.argv[1], Decoder, threads=1).serve(slots=2)
ticket = service.submit("abc", ignore_eos=True)
next(ticket)
"""

FORK = """
child = os.fork()
if child == 0:
    asked = lambda: service.submit("a"), ticket.result, ticket.cancel, lambda: next(ticket)
    for ask in asked:
        try:
            ask()
        except Exception as error:
            print(type(error).__name__, flush=True)
    service.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(len(service.submit("abc", max_new_tokens=3, ignore_eos=True).result().tokens))
"""


def run_program(model: Decoder, program: str) -> list[str]:
    path = str(model.bundle.path)
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_program_may_exit_without_closing(model: Decoder) -> None:
    assert run_program(model, PROGRAM + "print('end')") == ["end"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_rejected_and_exits(model: Decoder) -> None:
    assert run_program(model, PROGRAM + FORK) == ["ForkedError"] * 4 + ["3"]

"""Services that are closed, dropped, idle or forked."""

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from tests.runtime.serving.served import Held, settle

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import ServiceClosedError
from ortolan.runtime.generation.generator import Generator


def test_closing_finishes_accepted_requests(model: Decoder) -> None:
    with model.serve(slots=2) as service:
        tickets = [service.submit("abc", max_new_tokens=9, ignore_eos=True) for _ in range(7)]
    assert all(ticket.done for ticket in tickets)
    assert [len(ticket.completion().tokens) for ticket in tickets] == [9] * 7
    with pytest.raises(ServiceClosedError, match="closed"):
        service.submit("abc")
    service.close()


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_closing_by_a_deadline_cancels(model: Decoder, timeout: float) -> None:
    service = model.serve(slots=2)
    # eight more requests, the end of the service, and that of nine requests
    cancel = Held(service, commands=18)
    tickets = [service.submit("a" * 40, ignore_eos=True, cancel=cancel)]
    assert cancel.has_begun.wait(60)
    tickets += [service.submit("a" * 40, ignore_eos=True) for _ in range(8)]
    service.close(timeout)
    assert all(ticket.completion().finish_reason == "cancelled" for ticket in tickets)


def test_a_block_that_raises_cancels(model: Decoder) -> None:
    tickets = []

    def fail() -> None:
        with model.serve(slots=2) as service:
            cancel = Held(service, commands=2)
            tickets.append(service.submit("abc", ignore_eos=True, cancel=cancel))
            assert cancel.has_begun.wait(60)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    (ticket,) = tickets
    assert ticket.completion().finish_reason == "cancelled"


def test_dropped_services_finish_their_requests_and_end(model: Decoder) -> None:
    tickets = [
        model.serve(slots=2).submit("abc", max_new_tokens=9, ignore_eos=True) for _ in range(5)
    ]
    pieces = ["".join(ticket) for ticket in tickets]
    assert pieces == [ticket.completion().text for ticket in tickets]
    assert [len(ticket.completion().tokens) for ticket in tickets] == [9] * 5
    until = time.monotonic() + 60
    while serving() > (0, 0):
        assert time.monotonic() < until, serving()
        time.sleep(0.01)
    tickets[0].cancel()


def serving() -> tuple[int, int]:
    """Threads of services, and generators with their slots."""
    gc.collect()
    threads = sum(thread.name == "ortolan-service" for thread in threading.enumerate())
    return threads, sum(isinstance(item, Generator) for item in gc.get_objects())


def test_a_service_that_is_dropped_in_a_cycle_under_its_own_lock_ends(model: Decoder) -> None:
    service = model.serve(slots=2)
    ticket = service.submit("abc", max_new_tokens=9, ignore_eos=True)
    cycle: list[Any] = [service]
    cycle.append(cycle)
    lock = service._worker.lock
    del service, cycle
    with lock:  # the collector may run wherever something is allocated
        gc.collect()
    assert len(ticket.completion(timeout=60).tokens) == 9


def test_an_idle_service_takes_no_time(model: Decoder) -> None:
    with model.serve(slots=2) as service:
        service.submit("abc", max_new_tokens=5).completion()
        settle(service)
        time.sleep(0.02)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.01


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
    asked = lambda: service.submit("a"), ticket.completion, ticket.cancel, lambda: next(ticket)
    for ask in asked:
        try:
            ask()
        except Exception as error:
            print(type(error).__name__, flush=True)
    service.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(len(service.submit("abc", max_new_tokens=3, ignore_eos=True).completion().tokens))
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

"""Workers, and rounds in which they take turns.

Two programs measured one after the other are measured on two different machines: another load,
another clock, another temperature. Here every round asks each worker once, back to back, and every
other round in reverse, so that a drift of the machine falls on all of them alike.
Does not know what the workers run.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
PAUSE_S = 0.3  # the threads of the worker before keep spinning for a moment
CLOSE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A worker that can be started.

    Attributes:
        name: the peer.
        python: the interpreter of its environment.
        module: the worker, such as `workers.genai`.
        model: what it loads.
        threads: how many it may use.
    """

    name: str
    python: Path
    module: str
    model: Path
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer of one worker; see workers/protocol.py for the meaning of the times."""

    peer: str
    round: int
    tokens: tuple[int, ...]
    prefill_s: float
    decode_s: float
    peak_bytes: int | None


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables for a peer: no network, no telemetry, `threads` threads."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "ORT_DISABLE_TELEMETRY": "1",
    }


class Worker:
    """A process that has loaded a model and waits for requests.

    Attributes:
        name: the peer.
        load_s: seconds that loading took.
    """

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self._process = subprocess.Popen(
            [program.python, "-m", program.module, program.model, str(program.threads)],
            cwd=HERE,  # where `workers` is
            env=environment(program.threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.load_s: float = self._read()["load_s"]

    def ask(self, request: Mapping[str, Any], *, round: int) -> Run:
        """Send one request and wait for the answer.

        Raises:
            RuntimeError: the worker ended; what it said stands on stderr.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        answer["tokens"] = tuple(answer["tokens"])
        return Run(peer=self.name, round=round, **answer)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(
                f"{self.name}: expected an answer, got the end of its worker (status {status}). "
                "See its messages above."
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=CLOSE_S)  # closing stdin ends the worker


def measure(
    programs: Sequence[Program], request: Mapping[str, Any], *, rounds: int
) -> tuple[list[Run], dict[str, float]]:
    """Ask every program once to warm up, then once per round.

    Args:
        programs: all are kept loaded at the same time.
        request: what each is asked, every time.
        rounds: how many answers to keep of each program.

    Returns:
        The runs in the order in which they happened, without those of the warm-up, and the
        seconds that each program took to load its model.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(program)) for program in programs]
        for worker in workers:
            worker.ask(request, round=-1)
        runs = []
        for number in range(rounds):
            for worker in workers if number % 2 == 0 else workers[::-1]:
                time.sleep(PAUSE_S)
                runs.append(worker.ask(request, round=number))
    return runs, {worker.name: worker.load_s for worker in workers}

"""Workers, and rounds in which they alternate.

Programs measured one after the other run under different load, clock rate and temperature. Here
every round asks each worker once, back to back, and every other round in reverse, so that drift
affects all of them alike.
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

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
PAUSE_S = 0.3  # the threads of the previous worker keep spinning for a moment
CLOSE_S = 30
BLOCK = 1 << 24  # bytes read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A worker that can be started.

    Attributes:
        name: name of the peer.
        python: interpreter of its environment.
        module: module of the worker, such as `workers.genai`.
        model: model to load.
        threads: number of threads.
        options: `KEY=VALUE` for this worker.
        log: file for the output of the worker.
    """

    name: str
    python: Path
    module: str
    model: Path
    threads: int
    options: tuple[str, ...] = ()
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer of one worker; workers/protocol.py defines the times."""

    peer: str
    round: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    prefill_s: float
    decode_s: float
    peak_bytes: int | None


def environment(threads: int) -> dict[str, str]:
    """Environment variables for a peer: no network, no telemetry, `threads` threads."""
    return {
        **os.environ,
        "CI": "true",  # makes openvino-telemetry stay off
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "ORT_DISABLE_TELEMETRY": "1",
    }


def read_through(model: Path) -> int:
    """Read all files of a model; return their size in bytes.

    This puts them into the page cache, so that load times are comparable.
    """
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK):
                total += len(block)
    return total


class Worker:
    """A process that has loaded a model and waits for requests.

    Attributes:
        name: name of the peer.
        load_s: seconds to load the model from the page cache.
        model_bytes: size of the model's files.
    """

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self.model_bytes = read_through(program.model)
        self._log = program.log
        arguments = [str(program.model), str(program.threads), *program.options]
        with program.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(program.python), "-m", program.module, *arguments],
                cwd=HERE,  # where `workers` is
                env=environment(program.threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.load_s: float = self._read()["load_s"]

    def logits(self, ids: Sequence[int], path: Path) -> NDArray[np.float32]:
        """Logits after each id, `(len(ids), vocab)`.

        Args:
            ids: one sequence.
            path: .npy file for the worker to write.

        Raises:
            RuntimeError: the worker ended, or did not return a row per id.
        """
        self.answer({"logits_of": list(ids), "path": str(path)})
        logits: NDArray[np.float32] = np.load(path)
        if logits.ndim != 2 or len(logits) != len(ids):
            raise RuntimeError(
                f"{self.name}: returned logits of shape {logits.shape} for {len(ids)} tokens."
            )
        return logits

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request of `workers/protocol.py` and wait for the answer.

        Raises:
            RuntimeError: the worker ended; see its log.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(
                f"{self.name}: the worker ended with status {status}. See {self._log}."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Measurements of a worker before its first run; see `Worker`."""

    load_s: float
    model_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of one worker, unprocessed."""

    peer: str
    round: int
    request: Mapping[str, Any]
    answer: dict[str, Any]


def take_turns(
    programs: Sequence[Program],
    requests: Sequence[Mapping[str, Any]],
    *,
    rounds: int,
    starts: int = 1,
) -> tuple[list[Turn], dict[str, Loaded]]:
    """Send every request to every program, once to warm up and then once per round.

    Args:
        programs: programs, all loaded at the same time.
        requests: requests, in order; all programs answer one before the next.
        rounds: answers to keep per program, request and start.
        starts: times to start all programs anew. Where weights land in memory changes the speed
            of small models for as long as they are loaded.

    Returns:
        The answers in order, without the warm-up, and by peer the measurements of the first
        loading. Round numbers continue through all starts.
    """
    turns, loaded = _one_start(programs, requests, range(rounds))
    for start in range(1, starts):
        # Alternate, so that the same program does not always load first.
        ordered = programs if start % 2 == 0 else programs[::-1]
        more, _ = _one_start(ordered, requests, range(start * rounds, (start + 1) * rounds))
        turns += more
    return turns, loaded


def _one_start(
    programs: Sequence[Program], requests: Sequence[Mapping[str, Any]], numbers: range
) -> tuple[list[Turn], dict[str, Loaded]]:
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(program)) for program in programs]
        for worker in workers:
            for request in requests:
                worker.answer(request)
        turns = []
        for number in numbers:
            for request in requests:
                for worker in workers if number % 2 == 0 else workers[::-1]:
                    time.sleep(PAUSE_S)
                    answer = worker.answer(request)
                    turns.append(
                        Turn(peer=worker.name, round=number, request=request, answer=answer)
                    )
        return turns, {
            worker.name: Loaded(load_s=worker.load_s, model_bytes=worker.model_bytes)
            for worker in workers
        }


def measure(
    programs: Sequence[Program],
    requests: Sequence[Mapping[str, Any]],
    *,
    rounds: int,
    starts: int = 1,
) -> tuple[list[Run], dict[str, Loaded]]:
    """Generate with every program after every prompt; see `take_turns`."""
    turns, loaded = take_turns(programs, requests, rounds=rounds, starts=starts)
    return [
        Run(
            peer=turn.peer,
            round=turn.round,
            prompt_tokens=len(turn.request["prompt"]),
            **{**turn.answer, "tokens": tuple(turn.answer["tokens"])},
        )
        for turn in turns
    ], loaded

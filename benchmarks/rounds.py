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

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
PAUSE_S = 0.3  # the threads of the worker before keep spinning for a moment
CLOSE_S = 30
BLOCK = 1 << 24  # bytes read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A worker that can be started.

    Attributes:
        name: the peer.
        python: the interpreter of its environment.
        module: the worker, such as `workers.genai`.
        model: what it loads.
        threads: how many it may use.
        options: `KEY=VALUE`, for this worker alone.
        log: the file that gets whatever the worker prints.
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
    """One answer of one worker; see workers/protocol.py for the meaning of the times."""

    peer: str
    round: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    prefill_s: float
    decode_s: float
    peak_bytes: int | None


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables for a peer: no network, no telemetry, `threads` threads."""
    return {
        **os.environ,
        "CI": "true",  # what openvino-telemetry takes for a no
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "ORT_DISABLE_TELEMETRY": "1",
    }


def read_through(model: Path) -> int:
    """Read every file of a model and return how many bytes there are.

    Afterwards they are in the page cache, so that load times compare.
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
        name: the peer.
        load_s: seconds that loading took, all files in the page cache.
        model_bytes: what these files are in all.
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
        """Return the logits after each of some ids, `(len(ids), vocab)`.

        Args:
            ids: of one sequence.
            path: the .npy file that the worker shall write.

        Raises:
            RuntimeError: the worker ended, or does not give a row for each id.
        """
        self.answer({"logits_of": list(ids), "path": str(path)})
        found: NDArray[np.float32] = np.load(path)
        if found.ndim != 2 or len(found) != len(ids):
            raise RuntimeError(
                f"{self.name}: expected logits for each of {len(ids)} tokens, "
                f"got the shape {found.shape}."
            )
        return found

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request of `workers/protocol.py` and wait for the answer.

        Raises:
            RuntimeError: the worker ended; what it said stands in its log.
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
                f"{self.name}: expected an answer, got the end of its worker (status {status}). "
                f"See {self._log}."
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
    """What is known of a worker before its first run; see `Worker`."""

    load_s: float
    model_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of one worker, as it came."""

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
    """Put every request to every program, once to warm up and then once per round.

    Args:
        programs: all are kept loaded at the same time.
        requests: what to ask, one after the other; each is asked of all before the next.
        rounds: how many answers to keep of each program to each request, per start.
        starts: how often to start all programs anew. Where weights come to lie in memory is up
            to the system, and moves the speed of small models for as long as they are loaded.

    Returns:
        The answers in the order in which they came, without those of the warm-up, and what was
        seen at the first loading, by peer. Rounds are numbered through all starts.
    """
    turns, loaded = _one_start(programs, requests, range(rounds))
    for start in range(1, starts):
        # in turn, so that it is not always the same one that loads first
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
    """Let every program generate after every prompt; see `take_turns`."""
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

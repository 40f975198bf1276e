"""Runs something in a forked child with limits, and says how it ended.

The parent has imported everything and made no session of onnxruntime, so a fork takes milliseconds
and is safe.
"""

import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortolan.errors import OrtolanError

__all__ = ["OUTCOMES", "Outcome", "Say", "run", "run_stages"]

ADDRESS_BYTES = 6 << 30
FILE_BYTES = 1 << 30
SLOW_S, HUNG_S = 5.0, 12
"""Of the processor, so that a busy machine makes nothing slow."""

ALARM_S = 90
"""Of the clock, for what waits without end."""

MEMORY_MB = 500
"""More than what the bundle that was not changed takes; constants may ask for 256 MiB."""

OUTCOMES = ("loaded", "refused", "untyped", "died", "hung", "slow", "memory")
"""How a use of a bundle may end; all but the first two are findings."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended.

    Attributes:
        kind: one of `OUTCOMES`.
        stage: how far it got.
        said: the error, or the signal and the last words.
        seconds: of the processor.
        memory_mb: the most that it had, of which the parent's is a part.
    """

    kind: str
    stage: str = ""
    said: str = ""
    seconds: float
    memory_mb: int

    @property
    def is_finding(self) -> bool:
        """Whether this may not happen."""
        return self.kind not in ("loaded", "refused")


def run(use: Callable[[Say], object], log: Path, *, usual_mb: int) -> Outcome:
    """Call a function in a child.

    Args:
        use: takes what to call at the beginning of each stage.
        log: file for what the child prints.
        usual_mb: memory that is no finding.
    """
    outcome, _ = run_stages(use, log)
    if outcome.is_finding:
        return outcome
    if outcome.seconds > SLOW_S:
        return replace(outcome, kind="slow")
    return replace(outcome, kind="memory") if outcome.memory_mb > usual_mb + MEMORY_MB else outcome


def run_stages(use: Callable[[Say], object], log: Path) -> tuple[Outcome, list[str]]:
    """Call a function in a child, and give all stages that it went through."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _limit(log)
            _report(use, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = [json.loads(line) for line in pipe.read().splitlines()]
    _, status, usage = os.wait4(child, 0)
    stages = [line["stage"] for line in lines if "stage" in line]
    told: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    kind, said = told.get("kind", "died"), told.get("said", "")
    if os.WIFSIGNALED(status) or "kind" not in told:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        kind = "hung" if number in (signal.SIGALRM, signal.SIGXCPU) else "died"
        words = log.read_text(errors="replace")[-300:]
        said = f"{signal.Signals(number).name if number else 'exit'}: {words}"
    outcome = Outcome(
        kind=kind,
        stage=stages[-1] if stages else "",
        said=said,
        seconds=usage.ru_utime + usage.ru_stime,
        memory_mb=usage.ru_maxrss >> 10,
    )
    return outcome, stages


def _limit(log: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (HUNG_S, HUNG_S + 1))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ALARM_S)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _report(use: Callable[[Say], object], pipe: int) -> None:
    def say(**values: object) -> None:
        os.write(pipe, json.dumps(values).encode() + b"\n")

    started = time.process_time()
    try:
        use(lambda stage: say(stage=stage))
        say(kind="loaded", said="")
    except OrtolanError as error:
        say(kind="refused", said=f"{type(error).__name__}: {error}"[:400])
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"[:300]
        say(kind="untyped", said=f"{said} ({Path(where.filename).name}:{where.lineno})")
    say(seconds=time.process_time() - started)

"""Runs a function in a forked child with limits, and reports how it ended.

The parent has imported everything but created no onnxruntime session, so a fork is fast and safe.
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

ADDRESS_BYTES = 6 << 30
FILE_BYTES = 1 << 30
SLOW_S, HUNG_S = 5.0, 12
"""Processor seconds, which do not depend on other load."""

ALARM_S = 90
"""Clock seconds, for a child that waits forever."""

MEMORY_MB = 500
"""Memory on top of that of the unchanged bundle; constants may request 256 MiB."""

OUTCOMES = ("loaded", "refused", "untyped", "died", "hung", "slow", "memory")
"""All but the first two are findings."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a child ended.

    Attributes:
        kind: one of `OUTCOMES`.
        stage: the last one it reached.
        message: the error, or the signal and the last output.
        seconds: of the processor.
        memory_mb: peak, including memory shared with the parent.
    """

    kind: str
    stage: str = ""
    message: str = ""
    seconds: float
    memory_mb: int

    @property
    def is_finding(self) -> bool:
        """Whether this must not happen."""
        return self.kind not in ("loaded", "refused")


def run(use: Callable[[Say], object], log: Path, *, usual_mb: int) -> Outcome:
    """Call a function in a child.

    Args:
        use: called with a function to announce each stage.
        log: file for the child's output.
        usual_mb: memory of the unchanged bundle.
    """
    outcome, _ = run_stages(use, log)
    if outcome.is_finding:
        return outcome
    if outcome.seconds > SLOW_S:
        return replace(outcome, kind="slow")
    return replace(outcome, kind="memory") if outcome.memory_mb > usual_mb + MEMORY_MB else outcome


def run_stages(use: Callable[[Say], object], log: Path) -> tuple[Outcome, list[str]]:
    """Call a function in a child, and return all stages it reached."""
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
    report: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    kind, message = report.get("kind", "died"), report.get("message", "")
    if os.WIFSIGNALED(status) or "kind" not in report:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        kind = "hung" if number in (signal.SIGALRM, signal.SIGXCPU) else "died"
        words = log.read_text(errors="replace")[-300:]
        message = f"{signal.Signals(number).name if number else 'exit'}: {words}"
    outcome = Outcome(
        kind=kind,
        stage=stages[-1] if stages else "",
        message=message,
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
        say(kind="loaded", message="")
    except OrtolanError as error:
        say(kind="refused", message=f"{type(error).__name__}: {error}"[:400])
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}"[:300]
        say(kind="untyped", message=f"{message} ({Path(where.filename).name}:{where.lineno})")
    say(seconds=time.process_time() - started)

"""Measures the speed of a loaded model: prompt processing (pp) and token generation (tg).

Names and meanings are those of llama-bench, so figures can be compared.

    pp512  tg128 | pp512  tg128 | ...
      warm-up      repetition 1

Repetitions alternate over all cases, so a machine that slows down slows all of them, and the first
run of each is not counted.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.threads import physical_cores
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.generation.session import Session
from ortolan.runtime.machine.memory import peak_memory

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A benchmark: `pp` appends tokens at once, `tg` one after another, behind `depth` others."""

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """Name as in llama-bench: `tg128 @ d512`."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def end(self) -> int:
        """Tokens in the cache afterwards."""
        return self.depth + self.tokens


def cases(
    prompts: Iterable[int], news: Iterable[int], depths: Iterable[int] = (0,)
) -> tuple[Case, ...]:
    """Combine every prompt length and number of new tokens with every depth; 0 means none."""
    at_once = [Case(kind="pp", tokens=count) for count in prompts if count]
    singly = [Case(kind="tg", tokens=count) for count in news if count]
    combined = [replace(case, depth=depth) for depth in depths for case in (*at_once, *singly)]
    return tuple(dict.fromkeys(combined))


def check_context(chosen: Iterable[Case], context: int) -> None:
    """Check that the cases fit into the context of a model."""
    too_long = []
    for case in chosen:
        if case.tokens < 1 or case.depth < 0:
            raise InputError(
                f"{case.kind} needs at least 1 token, at a depth of at least 0 (got {case.tokens} "
                f"at {case.depth})."
            )
        if case.end > context:
            too_long.append(case)
    if not too_long:
        return
    longest = max(too_long, key=lambda case: case.end)
    room = context - longest.depth
    flags = dict.fromkeys("-p" if case.kind == "pp" else "-n" for case in too_long)
    options = " ".join(f"{flag} {room}" for flag in flags)
    raise ContextLengthError(
        f"{longest.name} exceeds the context of {context} tokens, got {longest.end}. "
        + (f"Choose at most {options}." if room > 0 else f"Choose a depth below {context}.")
    )


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second; `deviation` is of the sample, 0 for a single run."""

    mean: float
    deviation: float
    median: float
    runs: tuple[float, ...]


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one case."""

    name: str
    kind: Literal["pp", "tg"]
    tokens: int
    depth: int
    speed: Speed


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a benchmark.

    Attributes:
        physical_cores: cores that this process may use.
        repetitions: counted runs per case.
        cache_bytes_per_token: KV cache per token.
        peak_memory_bytes: peak resident memory of this process; `None` on Windows.
    """

    model_type: str
    precision: str
    device: str
    threads: int
    physical_cores: int
    repetitions: int
    cases: tuple[CaseResult, ...]
    cache_bytes_per_token: int
    peak_memory_bytes: int | None


def measure(
    model: Decoder,
    chosen: Iterable[Case],
    *,
    repetitions: int,
    progress: Progress | None = None,
) -> Result:
    """Measure cases on random tokens."""
    ordered = tuple(chosen)
    if not ordered:
        raise InputError("bench: there is no case to measure. Give -p or -n a length.")
    repetitions = checked_count("repetitions", repetitions)
    check_context(ordered, model.manifest.context_length)
    runs = _run(model, ordered, repetitions, progress)
    return Result(
        model_type=model.manifest.provenance.model_type,
        precision=model.manifest.precision,
        device=model.device,
        threads=model.threads,
        physical_cores=physical_cores(),
        repetitions=repetitions,
        cases=tuple(map(case_result, ordered, runs)),
        cache_bytes_per_token=model.manifest.state_bytes("append"),
        peak_memory_bytes=peak_memory(),
    )


def case_result(case: Case, seconds: list[float]) -> CaseResult:
    """Compute the figures of a case from the seconds of each counted run, at least one."""
    runs = tuple(case.tokens / elapsed for elapsed in seconds)
    speed = Speed(
        mean=statistics.fmean(runs),
        deviation=statistics.stdev(runs) if len(runs) > 1 else 0.0,
        median=statistics.median(runs),
        runs=runs,
    )
    return CaseResult(
        name=case.name, kind=case.kind, tokens=case.tokens, depth=case.depth, speed=speed
    )


def _run(
    model: Decoder, chosen: tuple[Case, ...], repetitions: int, progress: Progress | None
) -> list[list[float]]:
    """Seconds of every counted run, by case."""
    random = np.random.default_rng(0)
    ids = random.integers(0, model.manifest.vocab_size, max(case.end for case in chosen)).tolist()
    total, done = len(chosen) * (repetitions + 1), 0
    seconds: list[list[float]] = [[] for _ in chosen]
    with ExitStack() as stack:
        # one session per depth: filling the cache takes longer than most cases
        sessions = {
            depth: stack.enter_context(model.session())
            for depth in dict.fromkeys(case.depth for case in chosen)
        }
        for repetition in range(repetitions + 1):
            for case, taken in zip(chosen, seconds, strict=True):
                session = sessions[case.depth]
                _go_to(session, ids[: case.depth], rewindable=_rewindable(model))
                elapsed = _seconds(session, case, ids[case.depth : case.end])
                if repetition > 0:
                    taken.append(elapsed)
                done += 1
                if progress is not None:
                    progress(done, total)
    return seconds


def _go_to(session: Session, ids: list[int], *, rewindable: bool) -> None:
    """Leave exactly these tokens in the cache, recomputed only if rewinding is impossible."""
    session.rewind(len(ids) if rewindable and len(session) >= len(ids) else 0)
    if len(session) < len(ids):
        session.append(ids)


def _seconds(session: Session, case: Case, ids: list[int]) -> float:
    started = time.perf_counter()
    if case.kind == "pp":
        session.append(ids)
    else:
        token = ids[0]
        for _ in range(case.tokens):
            token = int(session.append([token]).argmax())
    return time.perf_counter() - started


def _rewindable(model: Decoder) -> bool:
    states = model.manifest.states
    return all(state.update == "append" and state.window is None for state in states)

"""Measures the speed of a loaded model: prompt processing (pp) and token generation (tg).

    bandwidth | pp512  tg128 | pp512  tg128 | ... | bandwidth
                warm-up        repetition 1

Repetitions alternate over all cases, so a machine that slows down slows all of them, and the first
run of each is not counted. The bandwidth is measured in the same process, for comparison with the
bytes that a token reads.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import numpy as np

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bench.cases import Case, cases, check_context
from ortolan.runtime.bench.figures import CaseResult, Result, case_result, weights
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.threads import physical_cores
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.session import Session
from ortolan.runtime.inspect import step_reads
from ortolan.runtime.inspect.advice import Advice, Facts, advise
from ortolan.runtime.inspect.step_reads import StepReads
from ortolan.runtime.machine import bandwidth as memory_speed
from ortolan.runtime.machine import memory as process_memory
from ortolan.runtime.machine.bandwidth import Bandwidth

__all__ = ["Case", "Result", "cases", "measure"]

Progress = Callable[[int, int], None]


def measure(
    model: Decoder,
    chosen: Iterable[Case],
    *,
    repetitions: int,
    progress: Progress | None = None,
) -> Result:
    """Measure cases on random tokens.

    Args:
        model: the model.
        chosen: cases, in the order in which each repetition runs them.
        repetitions: counted runs per case.
        progress: called with the number of runs done and the total.

    Raises:
        ContextLengthError: a case exceeds the model's context.
        InputError: there is no case, or a number is out of range.
    """
    ordered = tuple(chosen)
    if not ordered:
        raise InputError("bench: there is no case to measure. Give -p or -n a length.")
    repetitions = checked_count("repetitions", repetitions)
    check_context(ordered, model.manifest.context_length)
    graph = model.bundle.graphs.get("decode") or model.bundle.graphs["decoder"]
    reads = step_reads.count(model.manifest, graph, device="cpu")
    cache_bytes = memory_speed.last_level_cache()
    peaks, measured = [process_memory.peak_memory()], []
    if process_memory.reset_peak():
        measured.append(memory_speed.measure_bandwidth(model.threads, cache_bytes))
        process_memory.reset_peak()
    runs = _run(model, ordered, repetitions, progress)
    peaks.append(process_memory.peak_memory())
    measured.append(memory_speed.measure_bandwidth(model.threads, cache_bytes))
    bandwidth = _fastest(measured)
    speed = None if bandwidth is None else bandwidth.bytes_per_second
    results = tuple(
        case_result(case, seconds, reads, bandwidth=speed, cache_bytes=cache_bytes)
        for case, seconds in zip(ordered, runs, strict=True)
    )
    return Result(
        model_type=model.manifest.provenance.model_type,
        precision=model.manifest.precision,
        device=model.device,
        threads=model.threads,
        physical_cores=physical_cores(),
        repetitions=repetitions,
        cases=results,
        weights=weights(reads),
        cache_bytes_per_token=reads.cache_bytes_per_token,
        bandwidth=bandwidth,
        last_level_cache_bytes=cache_bytes,
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        notes=tuple(_notes(bandwidth, results)),
        advice=_advice(model, ordered, results, reads),
    )


def _fastest(measured: Iterable[Bandwidth | None]) -> Bandwidth | None:
    """Pick the fastest measurement, because a machine's speed varies."""
    successful = [result for result in measured if result is not None]
    return max(successful, key=lambda result: result.bytes_per_second, default=None)


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


def _notes(measured: Bandwidth | None, results: tuple[CaseResult, ...]) -> Iterator[str]:
    if measured is None:
        yield "bandwidth not measured: too little memory is free"
    elif measured.buffer_bytes < measured.wanted_bytes:
        yield (
            f"bandwidth measured over {measured.buffer_bytes / 1e6:.0f} MB, not "
            f"{measured.wanted_bytes / 1e6:.0f} MB, because memory is short: it may be too high"
        )
    for result in results:
        read = result.generation
        if read is not None and read.in_cache:
            yield f"{result.name}: everything that a token reads fits in the processor's cache"
        elif read is not None and measured is not None and read.bandwidth_share is None:
            yield f"{result.name}: reads faster than memory, so part comes from a cache"


def _advice(
    model: Decoder, chosen: tuple[Case, ...], results: tuple[CaseResult, ...], reads: StepReads
) -> tuple[Advice, ...]:
    """Advice, based on the first case that generates."""
    pairs = zip(chosen, results, strict=True)
    generating = ((case, figures.generation) for case, figures in pairs if figures.generation)
    case, read = next(generating, (None, None))
    return advise(
        Facts(
            reads=reads,
            length=None if case is None else case.mean_length,
            threads=model.threads,
            physical_cores=physical_cores(),
            share=None if read is None else read.bandwidth_share,
            in_cache=read is not None and bool(read.in_cache),
            is_packed=find_packed(model.bundle, onnxruntime=onnxruntime_version()) is not None,
        )
    )

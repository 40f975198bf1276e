"""The export's side of a witness: a budget of memory and time, and the verdict."""

import io
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import msgspec

from ortolan.export.errors import WitnessError, not_among
from ortolan.export.options import ExportOptions, WitnessTopic
from ortolan.export.progress import Progress, silent
from ortolan.export.source import Source
from ortolan.export.witness.brief import Brief, Finding
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.runtime.bundle.witness import Agreement, Witness
from ortolan.runtime.machine.memory import available_memory
from ortolan.runtime.machine.python_process import python_process

SECONDS, SHARE = 20.0, 0.1
"""Time for the questions: this many seconds, or this share of the export, whichever is more."""

LOADING_SECONDS = 60.0
"""More time for the subprocess to import its libraries, on a busy or slow machine."""

MEMORY_SHARE = 0.8
"""Share of the free memory that the subprocess may allocate."""

NAMES: tuple[WitnessTopic, ...] = get_args(WitnessTopic)


def ask(
    folder: Path,
    source: Source,
    options: ExportOptions,
    *,
    elapsed_s: float,
    progress: Progress = silent,
) -> Witness:
    """Ask the publisher's code what it makes of the checkpoint that a bundle was exported from.

    Args:
        folder: of the bundle.
        source: the checkpoint; a live model has no files that another library could read.
        options: of the export.
        elapsed_s: duration of the export so far.
        progress: called as topics are answered.

    Raises:
        WitnessError: it answers otherwise than the bundle.
    """
    path = _path(source)
    if not options.witness:
        return Witness(unasked="it was turned off")
    if path is None:
        return Witness(unasked="the source is a live model, which the certificate compares with")
    if find_spec("transformers") is None:
        return Witness(unasked="transformers is not installed")
    memory = available_memory()
    brief = Brief(
        bundle=str(folder),
        checkpoint=str(path),
        adapter=None if options.adapter is None else str(options.adapter),
        has_own_tokenizer=options.tokenizer is not None,
        memory=None if memory is None else int(MEMORY_SHARE * memory),
    )
    findings: list[Finding] = []
    for number, finding in enumerate(run(brief, max(SECONDS, SHARE * elapsed_s))):
        progress("witness", number, len(NAMES), finding.topic)
        findings.append(finding)
    return judged(findings, options.accept_difference)


def judged(findings: list[Finding], accepted: tuple[WitnessTopic, ...]) -> Witness:
    """The record of a witness.

    Raises:
        WitnessError: a topic differs that is not accepted.
    """
    topics = [finding for finding in findings if finding.topic]
    by = findings[0].by if findings else None
    for finding in topics:
        if finding.first is not None and finding.topic not in accepted:
            raise WitnessError(
                f"{finding.by} reads this checkpoint differently: {finding.topic}, "
                f"{finding.first}. If you know that the bundle is right, add "
                f"--accept-difference '{finding.topic}'."
            )
    if not any(finding.questions for finding in topics):
        reasons = [finding.unasked for finding in topics if finding.unasked]
        return Witness(unasked=reasons[0] if reasons else "there was nothing to ask")
    return Witness(
        by=by,
        topics=tuple(
            Agreement(
                topic=finding.topic,
                questions=finding.questions,
                agreed=finding.agreed,
                largest=finding.largest,
                unasked=finding.unasked,
            )
            for finding in topics
        ),
    )


def run(brief: Brief, seconds: float) -> Iterator[Finding]:
    """Start the subprocess, and yield its findings until it ends or its time is over."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with python_process(
            "-m",
            "ortolan.export.witness.child",
            msgspec.json.encode(brief).decode(),
            stderr=errors,
            environment={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        ) as process:
            late = threading.Event()

            def end() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(LOADING_SECONDS, end)
            timer.start()
            last = None
            started = time.monotonic()
            try:
                with process.stdout or io.BytesIO() as lines:
                    for line in lines:
                        last = msgspec.json.decode(line, type=Finding)
                        if not last.topic:  # loaded
                            timer.cancel()
                            timer = threading.Timer(seconds, end)
                            timer.start()
                        yield last
                status = process.wait()
            finally:
                timer.cancel()
        if late.is_set():
            took = time.monotonic() - started
            yield Finding(topic="rest", by=_by(last), unasked=f"stopped after {took:.0f} s")
        elif status != 0:
            errors.seek(0)
            report = errors.read().strip().splitlines()
            reason = report[-1] if report else f"exit status {status}"
            yield Finding(topic="rest", by=_by(last), unasked=f"its process failed: {reason}"[:160])


def _by(last: Finding | None) -> str:
    return "" if last is None else last.by


def _path(source: Source) -> Path | None:
    """The files of a source; None for a live model."""
    if isinstance(source, str | Path):
        return Path(source).absolute()
    return source.folder if isinstance(source, Checkpoint) else None


def check_accepted(topics: tuple[str, ...]) -> None:
    """Reject names of topics that do not exist."""
    for topic in topics:
        if topic not in NAMES:
            raise not_among("accept_difference", topic, NAMES)

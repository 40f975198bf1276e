"""The export's side of a witness: a budget of memory and time, and the verdict."""

import io
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple, get_args

import msgspec

from ortolan.export.duration import answerable_weights, core_flops, witness_limit
from ortolan.export.errors import WitnessError
from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions, WitnessTopic
from ortolan.export.parameters import count
from ortolan.export.progress import Progress, silent
from ortolan.export.source import AnySource
from ortolan.export.witness.brief import Brief, Finding
from ortolan.export.witness.shallow import least_layers, windows_of, write_first_layers
from ortolan.modeling.checkpoint.checkpoint import GGUF, Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.gguf.header import read_header
from ortolan.runtime.bundle.witness import Agreement, Witness
from ortolan.runtime.limits import MAX_LABEL_LENGTH
from ortolan.runtime.machine.memory import available_memory
from ortolan.runtime.machine.python_process import python_process

MEMORY_SHARE = 0.8
"""Share of the free memory that the subprocess may allocate."""

SMALL = 100_000_000
"""Number of weights up to which time is not measured."""

OLDEST = 5
"""First version of transformers that reads `rope_parameters`; others pass over it in silence."""

NAMES: tuple[WitnessTopic, ...] = get_args(WitnessTopic)


def ask(
    folder: Path,
    source: AnySource,
    model: Exportable,
    options: ExportOptions,
    max_context: int | None = None,
    elapsed_s: float = 0.0,
    child: "Child | None" = None,
    progress: Progress = silent,
    *,
    run_time_adapter: Path | None = None,
) -> Witness:
    """Ask the publisher's code what it makes of the checkpoint that a bundle was exported from.

    Args:
        folder: of the bundle.
        source: the checkpoint; a live model has no files that another library could read.
        model: as it was opened from the source.
        options: of the export.
        max_context: longest context that the user asked for.
        elapsed_s: duration of the export so far.
        child: the subprocess, if it was started before; it answers once.
        progress: called as topics are answered.
        run_time_adapter: folder with the certificate of an adapter that the bundle uses at run
            time. The options name the same adapter.

    Raises:
        WitnessError: it answers otherwise than the bundle.
    """
    if (problem := _problem(source, options)) is not None:
        return Witness(unasked=problem)
    limit_s = witness_limit(elapsed_s)
    files, memory = _files(source, options.adapter), available_memory()
    findings, total = dict[str, Finding](), len(NAMES)
    with tempfile.TemporaryDirectory() as temporary:
        first_layers = Path(temporary) / "first_layers"
        brief = Brief(
            bundle=str(folder),
            checkpoint=str(files.path),
            adapter=files.adapter,
            max_context=max_context,
            has_own_tokenizer=options.tokenizer is not None,
            memory=None if memory is None else int(MEMORY_SHARE * memory),
            weights=_weights(model, limit_s),
            least_layers=least_layers(model),
            first_layers=str(first_layers),
            run_time_adapter=None if run_time_adapter is None else str(run_time_adapter),
            is_long=_is_long(model),
            gguf_keys=_gguf_keys(files.path),
            mapped=files.size,
            windows=windows_of(model),
        )
        for finding in run(brief, limit_s, child):
            total = len(finding.plan) or total
            progress("witness", len(findings.keys() - {""}), total, finding.topic)
            if not finding.topic and finding.layers is not None:
                write_first_layers(first_layers, model, finding.layers)
            findings[finding.topic] = finding
    way_out = None if run_time_adapter is None else "--no-witness"
    return judged(list(findings.values()), options.accept_difference, way_out)


def _problem(source: AnySource, options: ExportOptions) -> str | None:
    """Why transformers is not asked; None if it is."""
    if not isinstance(source, str | Path | Checkpoint):
        return "the source is a live model, which the certificate compares with"
    if not options.witness:
        return "it was turned off"
    if find_spec("transformers") is None:
        return "transformers is not installed"
    installed = version("transformers")
    is_old = int(installed.partition(".")[0]) < OLDEST
    return f"transformers {installed} is older than {OLDEST}" if is_old else None


def _weights(model: Exportable, seconds: float) -> int | None:
    """How many weights can be asked about; None for a model that any machine has time for."""
    is_small = count(model.module) <= SMALL
    return None if is_small else answerable_weights(seconds, core_flops())


def _gguf_keys(path: Path) -> tuple[str, ...]:
    """Names of what a GGUF file says of its model."""
    if not path.is_file():
        return ()
    header = read_header(path)
    return tuple(key for key in header.metadata if key.startswith(f"{header.architecture}."))


def _is_long(model: Exportable) -> bool:
    """Whether a bundle has the rotary frequencies of long texts throughout."""
    last = model.switches_after
    return last is not None and model.context_length > last


def judged(
    findings: list[Finding], accepted: tuple[WitnessTopic, ...], way_out: str | None = None
) -> Witness:
    """The record of a witness; the way out is an option, by default that for the topic.

    Raises:
        WitnessError: a topic differs that is not accepted.
    """
    topics = [finding for finding in findings if finding.topic]
    by = findings[0].by if findings else None
    layers = next((finding.layers for finding in findings if finding.layers), None)
    for finding in topics:
        if finding.first is not None and finding.topic not in accepted:
            option = way_out or f"--accept-difference '{finding.topic}'"
            raise WitnessError(
                f"{finding.by} reads this checkpoint differently: {finding.topic}, "
                f"{finding.first}. If you know that the bundle is right, add {option}."
            )
    if not any(finding.questions for finding in topics):
        reasons = [finding.unasked for finding in topics if finding.unasked]
        return Witness(unasked=_cut(reasons[0]) if reasons else "there was nothing to ask")
    return Witness(
        by=by,
        layers=layers,
        topics=tuple(
            Agreement(
                topic=finding.topic,
                questions=finding.questions,
                agreed=finding.agreed,
                largest=None if finding.largest is None else float(f"{finding.largest:.1e}"),
                unasked=finding.unasked and _cut(finding.unasked),
            )
            for finding in topics
        ),
    )


def _cut(reason: str) -> str:
    """As much of a library's message as a manifest holds."""
    return reason[:MAX_LABEL_LENGTH]


class Child(NamedTuple):
    """The subprocess.

    Attributes:
        process: it imports its libraries, and waits for a brief.
        errors: what the libraries print.
    """

    process: subprocess.Popen[bytes]
    errors: IO[str]


@contextmanager
def started() -> Iterator[Child]:
    """Start the subprocess, and kill it on the way out."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        python_process(
            "-m",
            "ortolan.export.witness.child",
            stdin=subprocess.PIPE,
            stderr=errors,
            environment={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        ) as process,
    ):
        yield Child(process, errors)


def beforehand(
    source: AnySource, options: ExportOptions, *, is_long: bool
) -> AbstractContextManager[Child | None]:
    """Start the subprocess early, to import while an export works; not before a long one."""
    return nullcontext() if is_long or _problem(source, options) is not None else started()


def run(brief: Brief, seconds: float, child: Child | None = None) -> Iterator[Finding]:
    """Have the subprocess answer a brief, and yield its findings until its time is over.

    A topic has a finding after each of its questions, which replaces the one before.
    """
    last, rest, is_over = Finding(topic="", by=""), list[str](), threading.Event()
    with nullcontext(child) if child else started() as (process, errors):

        def end() -> None:
            is_over.set()
            process.kill()

        limit = threading.Timer(seconds, end)
        limit.start()
        try:
            with suppress(OSError), process.stdin or io.BytesIO() as request:  # it may have died
                request.write(msgspec.json.encode(brief))
            with process.stdout or io.BytesIO() as lines:
                for line in lines:
                    finding = msgspec.json.decode(line, type=Finding)
                    rest = [*finding.plan, *(name for name in rest if name != finding.topic)]
                    last = finding
                    yield finding
            status = process.wait()
        finally:
            limit.cancel()
        if is_over.is_set():
            reason = f"stopped after {seconds:.0f} s"
        elif status < 0:
            reason = "the system ended its process, perhaps for want of memory"
        elif status != 0:
            errors.seek(0)
            report = errors.read().strip().splitlines()
            reason = f"its process failed: {report[-1] if report else f'exit status {status}'}"
        else:
            return
        if not last.is_whole:
            rest.insert(0, f"the rest of {last.topic}")
        missing = f": {', '.join(rest)} not asked" if rest else ""
        yield Finding(topic="rest", by=last.by, unasked=f"{reason[:160]}{missing}")


class _Files(NamedTuple):
    """What the publisher's code reads.

    Attributes:
        path: folder of the checkpoint, or a GGUF file.
        adapter: folder of the adapter.
        size: bytes of its weights, which are mapped.
    """

    path: Path
    adapter: str | None
    size: int


def _files(source: AnySource, adapter: str | Path | None) -> _Files:
    assert isinstance(source, str | Path | Checkpoint)
    checkpoint = open_checkpoint(source, adapter=adapter)
    files, merged = checkpoint.opened.files, checkpoint.adapter
    path = files[0] if files[0].suffix == GGUF else checkpoint.folder
    return _Files(
        path=path.absolute(),
        adapter=None if merged is None else str(merged.folder.absolute()),
        size=sum(file.stat().st_size for file in files),
    )

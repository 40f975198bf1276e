"""Exports a checkpoint into the cache, in a subprocess.

So PyTorch and the export take no memory from the model that then runs. The subprocess holds the
lock of the entry: if either process is killed, no half of a bundle is ever used.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ortolan.cache import cache_folder, find, kept, remove_abandoned
from ortolan.cli.extras import extra
from ortolan.cli.progress import ESTIMATE, Reporter, duration
from ortolan.errors import OrtolanError
from ortolan.hub.client import Listing, list_files
from ortolan.hub.name import name_of

if TYPE_CHECKING:  # PyTorch is imported in the subprocess
    from ortolan.export.options import Device, PrecisionName
    from ortolan.modeling.checkpoint.checkpoint import Checkpoint

_TELL_S = 0.25  # seconds between two reports of one step

_WATCH_S = 0.5  # seconds between two looks at the parent

_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"


class PreparationError(OrtolanError):
    """A checkpoint cannot be made ready for a command."""

    code = "preparation"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint is exported."""

    command: str
    model: str  # what the user typed
    source: str  # a path, or a name
    commit: str | None  # of a name
    key: str  # of the cache
    precision: str
    device: str
    kinds: tuple[str, ...]  # that the command can use
    parent: int  # the process that waits


def exported(job: Job, steps: Reporter) -> Path:
    """Export a checkpoint unless another process does, and return the folder of the bundle."""
    with extra("export", command=job.command):
        from ortolan.export.process import ProcessError, run_python

    def on_line(line: str) -> None:
        kind, *rest = json.loads(line)
        match kind:
            case "progress":
                steps(*rest)
            case "note":
                steps.note(f"ortolan: {rest[0]}")
            case _:
                raise PreparationError(rest[0])

    steps("export", 0, 1)
    try:
        run_python("-m", __name__, msgspec.json.encode(job).decode(), on_line=on_line)
    except ProcessError as error:
        raise PreparationError(
            f"The export of {job.model} ended: {error}. If it ran out of memory, close other "
            f"programs. `ortolan --debug export {job.model} BUNDLE` shows more."
        ) from error
    except KeyboardInterrupt:
        remove_abandoned()  # the subprocess was killed while it cleaned up
        raise
    folder = find(job.key)
    if folder is None:
        raise PreparationError(f"{job.key} was removed from the cache. Run the command again.")
    return folder


def _main(job: Job, tell: Callable[..., None]) -> None:
    """The subprocess."""

    def waiting() -> None:
        tell("note", f"another process is exporting {job.model}; waiting for it")

    try:
        kept(job.key, lambda target: _export(job, target, tell), waiting=waiting)
    except OrtolanError as error:
        tell("error", f"{error}")


def _export(job: Job, target: Path, tell: Callable[..., None]) -> None:
    with extra("export", command=f"{job.command} with a checkpoint"):
        from ortolan.export.errors import OutputError
        from ortolan.export.pipeline import export
        from ortolan.export.quantize.stored import default_precision
        from ortolan.export.source import open_exportable
        from ortolan.export.source.names import fetched
        from ortolan.modeling.checkpoint.checkpoint import open_checkpoint

    progress = _Progress(job, tell)
    source, listing = Path(job.source), _listing(job)
    if listing is not None:
        check = partial(_check_template, job)
        source = fetched(listing, check=check, progress=progress)
    _check_template(job, open_checkpoint(source))
    model = open_exportable(source, tokenizer=None, max_context=None)
    _check_kind(job, model.kind)
    is_kept = default_precision(model) != "fp32"
    progress.keeps_codes = is_kept and job.precision in ("int8", "int4")
    try:
        export(
            source,
            target,
            precision=cast("PrecisionName", job.precision),
            device=cast("Device", job.device),
            progress=progress,
            warn=lambda text: tell("note", f"warning: {text}"),
        )
    except OutputError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None  # the cache says what to do
        raise


def _listing(job: Job) -> Listing | None:
    """The files of a name; by its branch, so that the cache of the Hub knows the branch later."""
    name = name_of(job.source)
    if name is None:
        return None
    listing = list_files(name)
    if listing.commit != job.commit:
        raise PreparationError(f"{job.model} has just changed. Run the command again.")
    return listing


def _check_template(job: Job, checkpoint: "Checkpoint") -> None:
    """Refuse to chat with a checkpoint that has no chat template."""
    if job.command != "chat" or any(checkpoint.companion(name) for name in _TEMPLATES):
        return
    config = checkpoint.companion(_TOKENIZER_CONFIG)
    if config is None or "chat_template" not in json.loads(config.read_bytes()):
        raise PreparationError(
            f"{job.model} has no chat template, so it cannot chat. Continue a text with "
            f"`ortolan run {job.model} TEXT`, or add its {_TEMPLATES[0]}."
        )


def _check_kind(job: Job, kind: str) -> None:
    if kind not in job.kinds:
        raise PreparationError(
            f"{job.command} needs a model that writes text, and {job.model} is an {kind}. Make a "
            f"bundle of it with `ortolan export {job.model} BUNDLE`, and see `ortolan --help` for "
            "the commands that use it."
        )


class _Progress:
    """Tells the parent of each step, and several times a second of its parts."""

    def __init__(self, job: Job, tell: Callable[..., None]) -> None:
        self.keeps_codes = False  # whether low-bit weights of the checkpoint stay as they are
        self._job, self._tell, self._step, self._told = job, tell, "", 0.0

    def __call__(self, step: str, done: int, total: int, what: str = "") -> None:
        now = time.monotonic()
        if step != self._step or done == total or now - self._told >= _TELL_S:
            self._step, self._told = step, now
            self._tell("progress", step, done, total, what)
        if step == ESTIMATE:
            how = "with its own codes" if self.keeps_codes else f"to {self._job.precision}"
            self._tell(
                "note",
                f"exporting {self._job.model} {how}, once: about {duration(total)}; kept in "
                f"{cache_folder()}",
            )


def _end_with(parent: int) -> None:
    """End this process soon after its parent, at any moment, as if both were killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    if os.name != "nt":  # there, the parent stays the same when it ends
        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is not for the parent

    def tell_parent(*words: Any) -> None:
        """Write a line; fails if the parent is gone, which ends the export."""
        print(json.dumps(words), file=lines, flush=True)

    chosen = msgspec.json.decode(sys.argv[1], type=Job)
    _end_with(chosen.parent)
    _main(chosen, tell_parent)

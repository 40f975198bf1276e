"""MODEL of `chat`, `run` and `serve`: a bundle, or a checkpoint that is exported once.

A checkpoint is exported into the cache, in a subprocess, so that PyTorch and the export take no
memory from the model that then runs. The subprocess holds the lock of the entry: if either process
is killed, no half of a bundle is ever used.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from ortolan import __version__, runtime
from ortolan.cache import cache_folder, find, kept, key_of, remove, remove_abandoned
from ortolan.cli.extras import extra
from ortolan.cli.opening import bundle_of
from ortolan.cli.options import CheckpointChoice
from ortolan.cli.progress import ESTIMATE, Reporter, duration
from ortolan.errors import OrtolanError
from ortolan.hub.client import Listing, list_files
from ortolan.hub.fetch import kind_of, origin_of
from ortolan.hub.name import Name, name_of

if TYPE_CHECKING:  # PyTorch is imported in the subprocess
    from ortolan.export.options import Device, PrecisionName
    from ortolan.modeling.checkpoint.checkpoint import Checkpoint

# The quickest to export and to run; 4-bit codes of a checkpoint stay as they are
DEFAULT_PRECISION = "int8"

_PARTS = {
    *(".json", ".jinja", ".txt", ".tsv", ".npy", ".model"),
    *(".safetensors", ".bin", ".gguf"),
}
"""Suffixes of the files of a checkpoint."""

_WATCH_S = 0.5  # seconds between two looks at the parent

_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"


class PreparationError(OrtolanError, code="preparation"):
    """A checkpoint cannot be made ready for a command."""


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


def ready(
    model: str,
    steps: Reporter,
    kinds: tuple[str, ...],
    device: str,
    checkpoint: CheckpointChoice,
) -> Path:
    """Return the folder of a bundle; a checkpoint is exported into the cache first.

    The running command can use models of these kinds.
    """
    name, path = name_of(model, checkpoint.revision), Path(model)
    listing = None
    if name is not None:
        steps("fetch", 0, 1)
        listing = list_files(name)
    is_checkpoint = _is_checkpoint(path) if listing is None else kind_of(listing) == "checkpoint"
    if not is_checkpoint:
        if checkpoint.precision is not None:
            raise click.UsageError(f"--precision is for checkpoints, and {model} is a bundle.")
        return path if listing is None else bundle_of(listing, steps)
    job = _job(model, path, listing, kinds, device, checkpoint)
    folder = find(job.key)
    if folder is not None and _is_usable(folder, model, steps):
        return folder
    folder = _exported(job, steps)
    steps("load", 0, 1)
    return folder


def _job(
    model: str,
    path: Path,
    listing: Listing | None,
    kinds: tuple[str, ...],
    device: str,
    checkpoint: CheckpointChoice,
) -> Job:
    precision = checkpoint.precision or DEFAULT_PRECISION
    target = device.partition(":")[0] if device != "auto" else "cpu"
    contents: list[Any]
    if listing is None:
        source, commit, label = f"{path.resolve()}", None, shown_name(model)
        contents = [*_contents(path)]
    else:
        name = listing.name
        source, commit, label = f"{name}", listing.commit, _label(name)
        contents = [name.repository, name.part, commit]
    label = "-".join(filter(None, (label, checkpoint.precision)))
    return Job(
        command=click.get_current_context().info_name or "",
        model=model,
        source=source,
        commit=commit,
        key=key_of(label, contents, precision, target, __version__),
        precision=precision,
        device=target,
        kinds=kinds,
        parent=os.getpid(),
    )


def shown_name(model: str) -> str:
    """What to call a model: the name of its repository, or of its folder or file."""
    name = name_of(model)
    if name is not None:
        return _label(name)
    path = Path(model).resolve()
    origin = origin_of(path)
    if origin is not None and path.suffix != ".gguf":
        return origin.partition("@")[0]
    return path.name.removesuffix(".gguf").removeprefix("models--")


def _label(name: Name) -> str:
    return f"{replace(name, revision=None)}"


def _is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint rather than a bundle, or nothing that Ortolan knows."""
    if path.is_file():
        return path.suffix == ".gguf"
    if any((path / other).exists() for other in ("manifest.json", "genai_config.json")):
        return False
    is_folder = (path / "config.json").is_file() or (path / "snapshots").is_dir()
    return is_folder or any(path.glob("*.gguf"))


def _contents(path: Path) -> Iterator[tuple[Any, ...]]:
    """Path, and names, sizes and times of the files of a checkpoint; hashing takes too long."""
    yield (f"{path.resolve()}",)
    patterns = ("*", "*/*", "snapshots/*/*")
    found = [path] if path.is_file() else [f for text in patterns for f in path.glob(text)]
    for file in sorted(found):
        if file.suffix in _PARTS or file.parent.name == "refs":
            with suppress(OSError):  # a broken link
                stat = file.stat()
                yield (file.relative_to(path).as_posix(), stat.st_size, stat.st_mtime_ns)


def _is_usable(folder: Path, model: str, steps: Reporter) -> bool:
    """Whether a bundle in the cache opens; if not, it is removed."""
    try:
        runtime.open_bundle(folder)
    except runtime.BundleError as error:
        steps.note(f"ortolan: the bundle of {model} in the cache is damaged: {error}")
        remove(folder.name)
        return False
    return True


def _exported(job: Job, steps: Reporter) -> Path:
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

    source, name = Path(job.source), name_of(job.source)
    if name is not None:
        listing = list_files(name)  # by its branch, so that the cache of the Hub knows that later
        if listing.commit != job.commit:
            raise PreparationError(f"{job.model} has just changed. Run the command again.")
        check = partial(_check_template, job)
        source = fetched(listing, check=check, progress=partial(tell, "progress"))
    _check_template(job, open_checkpoint(source))
    model = open_exportable(source)
    if model.kind not in job.kinds:
        raise PreparationError(
            f"{job.command} needs a model that writes text, and {job.model} is an {model.kind}. "
            f"Make a bundle of it with `ortolan export {job.model} BUNDLE`, and see "
            "`ortolan --help` for the commands that use it."
        )
    keeps_codes = default_precision(model) != "fp32" and job.precision in ("int8", "int4")

    def progress(step: str, done: int, total: int, what: str = "") -> None:
        is_whole = step == ESTIMATE and not done
        tell("progress", step, done, total, "" if is_whole else what)
        if is_whole:
            how = "with its own codes" if keeps_codes else f"to {job.precision}"
            cost = f"once: about {duration(total)}; kept in {cache_folder()}"
            tell("note", f"exporting {job.model} {how}, {cost}")

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


def _check_template(job: Job, checkpoint: Checkpoint) -> None:
    """Refuse to chat with a checkpoint that has no chat template."""
    if job.command != "chat" or any(checkpoint.companion(name) for name in _TEMPLATES):
        return
    config = checkpoint.companion(_TOKENIZER_CONFIG)
    if config is None or "chat_template" not in json.loads(config.read_bytes()):
        raise PreparationError(
            f"{job.model} has no chat template, so it cannot chat. Continue a text with "
            f"`ortolan run {job.model} TEXT`, or add its {_TEMPLATES[0]}."
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

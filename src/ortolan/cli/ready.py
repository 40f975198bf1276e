"""MODEL of `chat`, `run` and `serve`: a bundle, or a checkpoint that is exported once."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ortolan import __version__
from ortolan.cache import find, key_of, remove
from ortolan.cli.exported import Job, exported
from ortolan.cli.opening import bundle_of
from ortolan.cli.options import CheckpointChoice
from ortolan.cli.progress import Reporter
from ortolan.hub.client import list_files
from ortolan.hub.fetch import kind_of, origin_of
from ortolan.hub.name import Name, name_of

# The quickest to export and to run; 4-bit codes of a checkpoint stay as they are
DEFAULT_PRECISION = "int8"

_PARTS = {
    *(".json", ".jinja", ".txt", ".tsv", ".npy", ".model"),
    *(".safetensors", ".bin", ".gguf"),
}
"""Suffixes of the files of a checkpoint."""


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
    precision = checkpoint.precision or DEFAULT_PRECISION
    contents: list[object]
    commit: str | None
    name = name_of(model, checkpoint.revision)
    if name is not None:
        steps("fetch", 0, 1)
        listing = list_files(name)
        if kind_of(listing) == "bundle":
            _refuse_precision(model, checkpoint)
            return bundle_of(listing, steps)
        source, commit, label = f"{name}", listing.commit, _label(name)
        contents = [name.repository, name.part, listing.commit]
    elif _is_checkpoint(path := Path(model)):
        source, commit, label = f"{path.resolve()}", None, shown_name(model)
        contents = list(_contents(path))
    else:
        _refuse_precision(model, checkpoint)
        return path
    target = device.partition(":")[0] if device != "auto" else "cpu"
    label = "-".join(filter(None, (label, checkpoint.precision)))
    key = key_of(label, contents, precision, target, __version__)
    folder = find(key)
    if folder is not None and _is_usable(folder, model, steps):
        return folder
    job = Job(
        command=click.get_current_context().info_name or "",
        model=model,
        source=source,
        commit=commit,
        key=key,
        precision=precision,
        device=target,
        kinds=kinds,
        parent=os.getpid(),
    )
    folder = exported(job, steps)
    steps("load", 0, 1)
    return folder


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
    from ortolan.runtime import open_bundle
    from ortolan.runtime.errors import BundleError

    try:
        open_bundle(folder)
    except BundleError as error:
        steps.note(f"ortolan: the bundle of {model} in the cache is damaged: {error}")
        remove(folder.name)
        return False
    return True


def _refuse_precision(model: str, checkpoint: CheckpointChoice) -> None:
    if checkpoint.precision is not None:
        raise click.UsageError(f"--precision is for checkpoints, and {model} is a bundle.")

"""Opening the folder that an export wrote: every file of it is checked."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from ortolan.runtime import limits
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.bundle import Bundle, Progress, check_file, checked_chunks, chunks
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.trust import check_trusted
from ortolan.runtime.errors import BundleError, BundleNotFoundError
from ortolan.runtime.graph.rules import read as read_graph

__all__ = ["again_when_replaced", "open_bundle"]

F = TypeVar("F", bound=Callable[..., Any])

StrPath = str | os.PathLike[str]

_TRIES = 10


def again_when_replaced(read: F) -> F:
    """Let a function that reads a bundle begin again where another one took its place meanwhile.

    Args:
        read: its first argument is the path.

    Raises:
        InputError: it is no path.
    """

    @functools.wraps(read)
    def call(path: StrPath, *args: Any, **kwargs: Any) -> Any:
        place = checked_path("path", path)
        for _ in range(_TRIES):
            before = _identity(place)
            try:
                return read(place, *args, **kwargs)
            except BundleError:
                if _identity(place) == before:
                    raise
        return read(place, *args, **kwargs)

    return cast("F", call)


@again_when_replaced
def open_bundle(
    path: str | os.PathLike[str],
    *,
    full_check: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Open a bundle and check every file of it.

    The contents of the weights are read only with `full_check`: on a small device that takes
    longer than loading them.

    Args:
        path: the folder; it may be a symbolic link, its files may not.
        full_check: read and hash the weights too.
        trust: whoever made it: open it whatever its operators are.
        progress: called with the number of bytes read since the last call.

    Raises:
        BundleNotFoundError: no folder, or no manifest in it.
        ManifestError: the manifest is damaged or of another version.
        BundleFileError: a listed file is missing, resized, altered, or not a plain file.
        UntrustedError: it has operators that ortolan does not write, was not made by this user on
            this machine, and nobody said to `trust` it.
        GraphError: a graph does what a bundle may not do, or does not fit the manifest.
        InputError: it is no path.
    """
    folder = _folder(path)
    manifest = manifest_file.decode(_read_manifest(folder))
    if not trust:
        check_trusted(folder, manifest)
    roles = {graph.file: role for role, graph in manifest.graphs.items()}
    graphs = {}
    # Only listed files are opened. Others may lie beside them, and mean nothing: an interrupted
    # export leaves temporary files and blobs of the next version, users keep notes.
    for file in manifest.files:
        if file.name in roles:
            data = b"".join(checked_chunks(folder, file, progress))
            summary = read_graph(data, file=file.name)
            check_graph(roles[file.name], summary, manifest, file=file.name)
            graphs[roles[file.name]] = summary
        else:
            is_read = full_check or file.name not in manifest.weights
            check_file(folder, file, is_read=is_read, progress=progress)
    return Bundle(path=folder, manifest=manifest, graphs=graphs)


def _identity(path: Path) -> tuple[int, ...] | None:
    """What is another for another bundle at the same path; None where there is none."""
    try:
        folder, manifest = os.stat(path), os.stat(os.path.join(path, NAME))
    except OSError:
        return None
    return folder.st_dev, folder.st_ino, manifest.st_ino, manifest.st_mtime_ns


def _folder(path: StrPath) -> Path:
    folder = Path(path).absolute()
    if os.fsencode(folder) != str(folder).encode(errors="replace"):
        raise BundleNotFoundError(
            f"{str(path)!r}: expected a path in UTF-8, as onnxruntime takes it, got another. "
            "Rename the folder."
        )
    try:
        is_folder = folder.is_dir()
        exists = is_folder or folder.exists()
    except OSError as error:
        raise BundleNotFoundError(
            f"{path}: expected the folder of a bundle, got {error.strerror}. Check the path."
        ) from error
    if not exists:
        raise BundleNotFoundError(
            f"{path}: expected the folder of a bundle, got no such folder. "
            "Check the path, or make the bundle with `ortolan export`."
        )
    if not is_folder:
        raise BundleNotFoundError(
            f"{path}: expected the folder of a bundle, got a file. "
            f"Give the folder that holds {NAME}."
        )
    return folder


def _read_manifest(folder: Path) -> bytes:
    try:
        with open_plain(folder, NAME) as stream:
            # one byte more than may be: enough for the decoder to see that there is too much
            return b"".join(chunks(stream, NAME, limits.MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise BundleNotFoundError(
            f"{folder}: expected {NAME} in it, got a folder without one. "
            "Check the path; an interrupted export leaves such a folder."
        ) from error

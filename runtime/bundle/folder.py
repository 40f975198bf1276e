"""A bundle on disk: the folder that export wrote, opened and checked.

Knows the files: that each one is there, is a file, and holds what the manifest says. Does not
know how to run a graph (`ortolan.runtime.engine.session`).

Bundles never change in place: a new version is new blobs and then a new manifest. What was
checked stays true for as long as everybody keeps to that; `Bundle.read` does not rely on it.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ortolan.runtime import limits
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.graph_shapes import check_shapes
from ortolan.runtime.bundle.manifest import NAME, File, Manifest
from ortolan.runtime.errors import BundleFileError, BundleNotFoundError
from ortolan.runtime.graph import summary as onnx_graph
from ortolan.runtime.graph.summary import GraphSummary

__all__ = ["Bundle", "open_bundle"]

Progress = Callable[[int], None]

_ADVICE = "The bundle is incomplete or was changed: copy it again, or export it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle.

    Attributes:
        path: its folder, absolute.
        graphs: role, as in the manifest, to what the graph holds.
    """

    path: Path
    manifest: Manifest
    graphs: Mapping[str, GraphSummary]

    def file(self, name: str) -> Path:
        """Give the path of a file, for libraries that open files themselves.

        Raises:
            BundleFileError: the manifest does not list the file.
        """
        return self.path / self._entry(name).name

    def read(self, name: str) -> bytes:
        """Read a whole file; what is returned is what the manifest says, even now.

        Raises:
            BundleFileError: the manifest does not list the file, or it was changed.
        """
        return b"".join(_checked_chunks(self.path, self._entry(name), None))

    def _entry(self, name: str) -> File:
        for file in self.manifest.files:
            if file.name == name:
                return file
        raise BundleFileError(
            f"{name}: expected a file that {NAME} lists, got a name that it does not. "
            f"The bundle has {', '.join(file.name for file in self.manifest.files)}."
        )


def open_bundle(
    path: str | os.PathLike[str],
    *,
    full_check: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Open a bundle and check every file of it.

    The contents of the weights are read only with `full_check`: on a small device that takes
    longer than loading them.

    Args:
        path: the folder; it may be behind a symbolic link, its files may not.
        full_check: read and hash the weights too.
        progress: called with the number of bytes read since the last call.

    Raises:
        BundleNotFoundError: no folder, or no manifest in it.
        ManifestError: the manifest is damaged or of another version.
        BundleFileError: a listed file is missing, resized, altered, or not a plain file.
        GraphError: a graph does what a bundle may not do, or does not fit the manifest.
    """
    folder = _folder(path)
    manifest = manifest_file.decode(_read_manifest(folder))
    roles = {graph.file: role for role, graph in manifest.graphs.items()}
    graphs = {}
    # Only listed files are opened. Others may lie beside them, and mean nothing: an interrupted
    # export leaves temporary files and blobs of the next version behind, users keep notes.
    for file in manifest.files:
        if file.name in roles:
            data = b"".join(_checked_chunks(folder, file, progress))
            summary = onnx_graph.read(data, file=file.name)
            onnx_graph.check(summary, manifest, file=file.name)
            check_shapes(roles[file.name], summary, manifest, file=file.name)
            graphs[roles[file.name]] = summary
        elif full_check or file.name not in manifest.weights:
            for _ in _checked_chunks(folder, file, progress):
                pass
        else:
            _open_listed(folder, file).close()
    return Bundle(path=folder, manifest=manifest, graphs=graphs)


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path).absolute()
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
            return b"".join(_chunks(stream, NAME, limits.MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise BundleNotFoundError(
            f"{folder}: expected {NAME} in it, got a folder without one. "
            "Check the path; an export that was interrupted leaves such a folder behind."
        ) from error


def _open_listed(folder: Path, file: File) -> BinaryIO:
    try:
        stream = open_plain(folder, file.name)
    except FileNotFoundError as error:
        raise BundleFileError(
            f"{file.name}: expected a file of {file.size} bytes, got none. {_ADVICE}"
        ) from error
    size = os.fstat(stream.fileno()).st_size
    if size != file.size:
        stream.close()
        raise BundleFileError(f"{file.name}: expected {file.size} bytes, got {size}. {_ADVICE}")
    return stream


def _checked_chunks(folder: Path, file: File, progress: Progress | None) -> Iterator[bytes]:
    """Yield the contents of a file; raise at the end when they are not those of the manifest."""
    digest = hashlib.sha256()
    with _open_listed(folder, file) as stream:
        # one byte more than may be, so that a file that grows meanwhile has another hash
        for chunk in _chunks(stream, file.name, file.size + 1):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
            yield chunk
    if digest.hexdigest() != file.sha256:
        raise BundleFileError(
            f"{file.name}: expected sha256 {file.sha256}, got {digest.hexdigest()}. {_ADVICE}"
        )


def _chunks(stream: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """Yield what a stream holds, at most `size` bytes of it."""
    while size > 0:
        try:
            chunk = stream.read(min(size, limits.HASH_CHUNK_BYTES))
        except OSError as error:
            raise BundleFileError(
                f"{name}: expected a readable file, got {error.strerror}. Check the disk."
            ) from error
        if not chunk:
            return
        size -= len(chunk)
        yield chunk

"""An opened bundle, and reading the files that its manifest lists.

Bundles never change in place: a new version is new weights, then a new manifest. `Bundle.read` does
not rely on it and checks every file that it reads.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ortolan.runtime import limits
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import NAME, File, Manifest
from ortolan.runtime.errors import BundleFileError
from ortolan.runtime.graph.summary import GraphSummary

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""

_ADVICE = "The bundle is incomplete or was changed: copy it again, or export it again."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bundle:
    """An opened bundle.

    Attributes:
        path: absolute path of the folder.
        graphs: summaries of the graphs by role.
        kept: contents of files by name; `None` to read each file when it is needed.
    """

    path: Path
    manifest: Manifest
    graphs: Mapping[str, GraphSummary]
    kept: Mapping[str, bytes] | None = None

    def __repr__(self) -> str:
        """`<Bundle build/pythonic: decoder, fp32, 22.1 MB, context 512>`."""
        total = sum(file.size for file in self.manifest.files)
        return f"<Bundle {self.described}, {self.manifest.kind}, {total / 1e6:.1f} MB>"

    @property
    def described(self) -> str:
        """Folder, precision and context in a few words."""
        manifest = self.manifest
        return f"{self.path}: {manifest.precision}, context {manifest.context_length}"

    def keeping(self, *, weights: bool = False) -> "Bundle":
        """Return the same bundle with its files in memory, independent of the folder.

        Args:
            weights: also keep the weights, which are large.

        Raises:
            BundleFileError: a file was changed.
        """
        names = (file.name for file in self.manifest.files)
        return replace(
            self,
            kept={
                name: self.read(name)
                for name in names
                if weights or name not in self.manifest.weights
            },
        )

    def file(self, name: str) -> Path:
        """Return the path of a file, for libraries that open files themselves.

        Raises:
            BundleFileError: the manifest does not list the file.
        """
        return self.path / self._entry(name).name

    def read(self, name: str) -> bytes:
        """Read a whole file and check its hash.

        Raises:
            BundleFileError: the manifest does not list the file, or it was changed.
        """
        if self.kept is not None and name in self.kept:
            return self.kept[name]
        return b"".join(checked_chunks(self.path, self._entry(name)))

    def _entry(self, name: str) -> File:
        for file in self.manifest.files:
            if file.name == name:
                return file
        raise BundleFileError(
            f"{NAME} lists no file {name}. "
            f"The bundle has {', '.join(file.name for file in self.manifest.files)}."
        )


def check_file(
    folder: Path, file: File, *, is_read: bool, progress: Progress | None = None
) -> None:
    """Check the size of a listed file and, with `is_read`, its hash."""
    if is_read:
        for _ in checked_chunks(folder, file, progress):
            pass
    else:
        _open_listed(folder, file).close()


def _open_listed(folder: Path, file: File) -> BinaryIO:
    try:
        stream = open_plain(folder, file.name)
    except FileNotFoundError as error:
        raise BundleFileError(f"{file.name} is missing ({file.size} bytes). {_ADVICE}") from error
    size = os.fstat(stream.fileno()).st_size
    if size != file.size:
        stream.close()
        raise BundleFileError(f"{file.name}: expected {file.size} bytes, got {size}. {_ADVICE}")
    return stream


def checked_chunks(folder: Path, file: File, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the contents of a file; raise `BundleFileError` at the end if their hash is wrong."""
    digest = hashlib.sha256()
    with _open_listed(folder, file) as stream:
        # one byte more than listed, so that a file that grows meanwhile has another hash
        for chunk in chunks(stream, file.name, file.size + 1):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
            yield chunk
    if digest.hexdigest() != file.sha256:
        raise BundleFileError(
            f"{file.name}: expected sha256 {file.sha256}, got {digest.hexdigest()}. {_ADVICE}"
        )


def chunks(stream: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """Yield at most `size` bytes of a stream."""
    while size > 0:
        try:
            chunk = stream.read(min(size, limits.HASH_CHUNK_BYTES))
        except OSError as error:
            raise BundleFileError(
                f"{name} cannot be read: {error.strerror}. Check the disk."
            ) from error
        if not chunk:
            return
        size -= len(chunk)
        yield chunk

"""Writing files: bundles, checkpoints and saved states go through here.

A call that a signal interrupted is made again, a write that was cut short is finished; any other
error is the caller's, as an `OSError`. Reading needs none of this.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

try:
    import fcntl
except ImportError:  # Windows: files of processes that were killed stay
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "NewFile",
    "completed",
    "copy",
    "create",
    "destination",
    "followed",
    "make_folder",
    "make_folders",
    "remove",
    "remove_folder",
    "rename",
    "replace",
    "replaced",
    "sync",
    "temporary_folder",
    "write",
]

P = ParamSpec("P")
R = TypeVar("R")

Bytes = bytes | bytearray | memoryview

_CHUNK_BYTES = 1 << 20

_SAFELY = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)

_MADE = os.O_WRONLY | os.O_CREAT | _SAFELY

_LEFT = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _SAFELY
"""A pipe would block."""


def completed(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of the system until no signal interrupts it."""
    while True:
        # Python itself does so for some of the calls, and not for those on NFS or FUSE.
        with contextlib.suppress(InterruptedError):
            return function(*args, **kwargs)


class NewFile:
    """A file that is being written, without a buffer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Bytes) -> int:
        """Write all of some data; gives its length in bytes."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[completed(os.write, self._descriptor, rest) :]
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on elsewhere; what is skipped at the end becomes a hole, which takes no room."""
        return os.lseek(self._descriptor, offset, whence)

    def sync(self) -> None:
        """Wait until all of it is on the disk."""
        completed(os.fsync, self._descriptor)

    def hold(self) -> bool:
        """Show that somebody is writing it; False where another process is removing it."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks: nobody can remove it either
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Close it; a second time has no effect."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def create(path: Path) -> NewFile:
    """Start a file, or start it anew, in a folder that nobody reads yet."""
    return NewFile(completed(os.open, path, _MADE | os.O_TRUNC, 0o666))


def write(path: Path, data: Bytes | str) -> None:
    """Write a whole file in a folder that nobody reads yet; text as UTF-8."""
    with create(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def copy(source: Path, target: Path) -> None:
    """Copy the contents of a file into a folder that nobody reads yet."""
    with source.open("rb") as stream, create(target) as file:
        while chunk := stream.read(_CHUNK_BYTES):
            file.write(chunk)


def followed(path: Path) -> Path:
    """The path that links lead to; it may be free.

    Raises:
        OSError: the links form a circle.
    """
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return place


def destination(path: Path) -> Path:
    """The file that writing to a path replaces. Links are followed, so that they stay.

    Raises:
        OSError: a folder, a device, a pipe or a socket is there, or a circle of links.
    """
    place = followed(path)
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if place.exists() and not place.is_file():
        raise OSError(errno.EEXIST, "Not a regular file", str(path))
    return place


@contextlib.contextmanager
def replaced(path: Path, *, is_private: bool = False, is_synced: bool = True) -> Iterator[NewFile]:
    """A file that takes the place of another when the block ends well: whole, or not at all.

    It is written beside it. A process that is killed leaves that; the next one that writes the same
    file removes it.

    Args:
        path: of the file, or of a link to it; its folder must be there.
        is_private: for this user's eyes alone.
        is_synced: wait until it is on the disk.

    Raises:
        OSError: the place cannot be written to, or holds something other than a file.
    """
    path = destination(path)
    _remove_left(path)
    unfinished, file = _unfinished(path, 0o600 if is_private else 0o666)
    try:
        with file:
            yield file
            if is_synced:
                file.sync()
            if fcntl is None:
                file.close()  # Windows renames no open file
            replace(unfinished, path)
        if is_synced:
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            remove(unfinished)


def make_folder(path: Path) -> None:
    """Make a folder, which must not be there."""
    completed(os.mkdir, path)


def make_folders(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those that it is to lie in, unless they are there.

    Args:
        path: of the folder.
        mode: of the folder itself.
    """
    completed(path.mkdir, mode=mode, parents=True, exist_ok=True)


def rename(path: Path, target: Path) -> None:
    """Give a file or a folder another name."""
    completed(os.rename, path, target)


def replace(path: Path, target: Path) -> None:
    """Put a file in the place of another."""
    completed(os.replace, path, target)


def remove(path: Path) -> None:
    """Remove a file or a link, unless it has gone already."""
    completed(path.unlink, missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder and all that is in it, or a link; neither has to be there."""
    if path.is_symlink():
        remove(path)  # what it points to is not ours
    elif path.exists():
        completed(shutil.rmtree, path)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A folder for the time of a block."""
    make_folder(path)
    try:
        yield path
    finally:
        remove_folder(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows cannot open a folder
    # Windows syncs only what is open for writing.
    descriptor = completed(os.open, path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        completed(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _unfinished(path: Path, mode: int) -> tuple[Path, NewFile]:
    """A new file beside another."""
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = NewFile(completed(os.open, name, _MADE | os.O_EXCL, mode))
        if file.hold():
            return name, file
        file.close()


def _remove_left(path: Path) -> None:
    """Remove what processes that are no more were writing in the place of a file."""
    if fcntl is None:
        return
    unfinished = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    with os.scandir(path.parent) as entries:
        left = [path.with_name(entry.name) for entry in entries if unfinished.fullmatch(entry.name)]
    for each in left:
        with contextlib.suppress(OSError):
            descriptor = os.open(each, _LEFT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(each)
            finally:
                os.close(descriptor)

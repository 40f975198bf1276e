"""Writing files: bundles, checkpoints and saved states.

Calls that a signal interrupts are repeated, and partial writes are completed. All other errors are
raised as `OSError`. Reading needs none of this.
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
except ImportError:  # Windows: temporary files of killed processes stay, and nothing is locked
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None

P = ParamSpec("P")
R = TypeVar("R")

Bytes = bytes | bytearray | memoryview

_CHUNK_BYTES = 1 << 20

_SAFE = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)

_CREATE = os.O_WRONLY | os.O_CREAT | _SAFE

_OPEN = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _SAFE  # a pipe would block


def described(error: OSError, *, full: str = "Free some disk space.") -> str:
    """The system's message, and what to do about it if the message tells."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{error}. {full}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{error}. Check the permissions."
        case errno.EAGAIN:  # a lock, see `ortolan.staging`
            return "another process is writing there. Wait for it."
        case _:
            return f"{error}."


def completed(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Repeat a system call until no signal interrupts it."""
    while True:
        # Python repeats some calls itself, but not those on NFS or FUSE
        with contextlib.suppress(InterruptedError):
            return function(*args, **kwargs)


class NewFile:
    """An unbuffered file that is being written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Bytes) -> int:
        """Write all of the data and return its size in bytes."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[completed(os.write, self._descriptor, rest) :]
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position; skipping past the end leaves a hole, which takes no space."""
        return os.lseek(self._descriptor, offset, whence)

    def sync(self) -> None:
        """Wait until the file is on disk."""
        completed(os.fsync, self._descriptor)

    def hold(self) -> bool:
        """Lock the file while it is written; `False` if another process is removing it."""
        if not HAS_LOCKS:
            return True
        try:
            lock(self._descriptor)
        except BlockingIOError:
            return False
        except OSError:
            return True  # without locks, no other process removes it either
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Close the file, once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def lock(descriptor: int, *, waits: bool = False) -> None:
    """Lock a file until its descriptor is closed; raise `BlockingIOError` if another process has.

    The operating system releases a dead process's lock.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


def create(path: Path) -> NewFile:
    """Create or truncate a file in a folder that nothing reads yet."""
    return NewFile(completed(os.open, path, _CREATE | os.O_TRUNC, 0o666))


def write(path: Path, data: Bytes | str) -> None:
    """Write a file in a folder that nothing reads yet; text as UTF-8."""
    with create(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def copy(source: Path, target: Path) -> None:
    """Copy the contents of a file into a folder that nothing reads yet."""
    with source.open("rb") as stream, create(target) as file:
        while chunk := stream.read(_CHUNK_BYTES):
            file.write(chunk)


def followed(path: Path) -> Path:
    """Resolve links; the resulting path need not exist."""
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return place


def destination(path: Path) -> Path:
    """Return the file that writing to a path replaces. Links are followed, so they stay."""
    place = followed(path)
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if place.exists() and not place.is_file():
        raise OSError(errno.EEXIST, "Not a regular file", str(path))
    return place


@contextlib.contextmanager
def replaced(path: Path, *, is_private: bool = False, is_synced: bool = True) -> Iterator[NewFile]:
    """Replace a file atomically when the block succeeds.

    The new contents go to a temporary file next to it. If the process is killed, the next one that
    writes the same file removes the temporary file.
    """
    path = destination(path)
    _remove_abandoned(path)
    temporary, file = _temporary(path, 0o600 if is_private else 0o666)
    try:
        with file:
            yield file
            if is_synced:
                file.sync()
            if not HAS_LOCKS:
                file.close()  # Windows cannot rename an open file
            replace(temporary, path)
        if is_synced:
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)


def make_folder(path: Path) -> None:
    """Create a folder that does not exist."""
    completed(os.mkdir, path)


def make_folders(path: Path, *, mode: int = 0o777) -> None:
    """Create a folder and its parents if they do not exist; `mode` is for the folder itself."""
    completed(path.mkdir, mode=mode, parents=True, exist_ok=True)


def rename(path: Path, target: Path) -> None:
    """Rename a file or a folder."""
    completed(os.rename, path, target)


def replace(path: Path, target: Path) -> None:
    """Rename a file, replacing another."""
    completed(os.replace, path, target)


def remove(path: Path) -> None:
    """Remove a file or a link if it exists."""
    completed(path.unlink, missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with its contents, or a link, if it exists."""
    if path.is_symlink():
        remove(path)  # not what it points to
    elif path.exists():
        completed(shutil.rmtree, path)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a folder that exists while the block runs."""
    make_folder(path)
    try:
        yield path
    finally:
        remove_folder(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return  # Windows cannot open a folder
    # Windows only syncs files that are open for writing; others need not be writable
    descriptor = completed(os.open, path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        completed(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path, mode: int) -> tuple[Path, NewFile]:
    """Create a temporary file next to `path`."""
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = NewFile(completed(os.open, name, _CREATE | os.O_EXCL, mode))
        if file.hold():
            return name, file
        file.close()


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files that killed processes left next to `path`."""
    if not HAS_LOCKS:
        return
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    for temporary in map(path.with_name, names):
        with contextlib.suppress(OSError):
            descriptor = os.open(temporary, _OPEN)
            try:
                lock(descriptor)
                remove(temporary)
            finally:
                os.close(descriptor)

"""Folders that appear whole or not at all.

A folder is built beside its target and renamed into place when every byte is on the disk. Killed at
any moment, the process leaves the old folder, or none where it was just exchanging the two;
`settle` then brings the old one back.

Beside a target `bundle` there may be `.bundle.lock`, held by a process that writes to it,
`.bundle.new`, which it builds, and `.bundle.old`, which it is about to delete.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes that write to one target are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["BusyError", "Place", "settle", "staged"]


class BusyError(Exception):
    """Another process is writing to the target."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a folder goes.

    Attributes:
        target: the folder.
        index: the file without which it is not whole; deleted first.
        name: of the files beside it; the target's own by default.
    """

    target: Path
    index: str
    name: str = ""

    def beside(self, role: str) -> Path:
        """The path of the lock, the new folder or the old one."""
        return self.target.parent / f".{self.name or self.target.name}.{role}"


@contextlib.contextmanager
def staged(place: Place) -> Iterator[Path]:
    """An empty folder, which becomes the target when the block ends well.

    Raises:
        BusyError: another process is writing there.
        OSError: the place cannot be written to.
    """
    staging = place.beside("new")
    with _locked(place.beside("lock")):
        settle(place)
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir()
        try:
            yield staging
            _commit(staging, place)
        finally:
            # Still there when the block failed; renamed away when it did not.
            shutil.rmtree(staging, ignore_errors=True)


def settle(place: Place) -> None:
    """Finish or undo what a process that was killed left beside the target."""
    old = place.beside("old")
    if old.is_symlink():
        old.unlink()  # what it points to is not ours
        return
    if not old.exists():
        return
    # Without its index it was already being deleted.
    if place.target.exists() or not (old / place.index).exists():
        # The index first: half of a folder must not look whole.
        (old / place.index).unlink(missing_ok=True)
        shutil.rmtree(old)
    else:
        old.rename(place.target)


def _commit(staging: Path, place: Place) -> None:
    """Everything to the disk, then the exchange of names."""
    for path in (*staging.iterdir(), staging):
        _sync(path)
    if place.target.exists():
        place.target.rename(place.beside("old"))
    try:
        staging.rename(place.target)
    except OSError:
        settle(place)
        raise
    _sync(place.target.parent)
    with contextlib.suppress(OSError):  # the next process tries again
        settle(place)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    # A link is refused: a bundle from elsewhere may hold one.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _hold(lock, descriptor):
            raise BusyError
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a lock that stays is harmless
                lock.unlink()
    finally:
        os.close(descriptor)


def _hold(lock: Path, descriptor: int) -> bool:
    """Lock an open file; False where another process has locked it, or just removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows cannot open a folder
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

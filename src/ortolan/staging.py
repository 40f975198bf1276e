"""Folders, and files that belong together, that appear whole or not at all.

What is new is built beside its place, and takes it when every byte is on the disk.

`staged` exchanges whole folders. Linux does so at once: killed at any moment, the process leaves
the old folder or the new one. Elsewhere, and where a file system cannot, two renames leave none
between them; `settle` then brings the old one back. `placed` exchanges files of a folder that holds
others too. While several change places, the one without which the rest is nothing is not there.

Beside a target `bundle` there may be `.bundle.lock`, held by a process that writes to it,
`.bundle.new`, which it builds, and `.bundle.old`, which it is about to delete. The next process
that writes there removes what one that was killed has left.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ortolan import files

try:
    import fcntl
except ImportError:  # Windows: two processes that write to one target are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["BusyError", "Place", "exchange", "placed", "settle", "staged"]

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""

_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
"""A link is refused: a bundle from elsewhere may hold one."""

_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


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
        OSError: the place cannot be written to, or holds something other than a folder.
    """
    with _locked(place.beside("lock")):
        settle(place)
        with _built(place.beside("new")) as folder:
            yield folder
            _commit(folder, place)


@contextlib.contextmanager
def placed(folder: Path, *, index: str, owned: Collection[str] = ()) -> Iterator[Path]:
    """An empty folder, whose files go into another one when the block ends well: all, or none.

    Files there of the same names are replaced, the others stay. Folders in it are taken likewise.
    Links in the folder are neither followed nor replaced: what they point to may belong to others,
    as in a cache of the hub.

    Args:
        folder: made where it is missing; it may be a link.
        index: the file without which the others are nothing.
        owned: files that are removed where the block does not write them anew.

    Raises:
        BusyError: another process is writing there.
        OSError: the place cannot be written to, or one of the names is taken by a link, a folder
            or a device; what was there is as it was.
    """
    files.make_folders(folder)
    place = Place(folder / index, index)
    with _locked(place.beside("lock")), _built(place.beside("new")) as new:
        yield new
        _place(new, folder, index, owned)


def settle(place: Place) -> None:
    """Finish or undo what a process that was killed left beside the target."""
    old = place.beside("old")
    if old.is_symlink():
        files.remove(old)  # what it points to is not ours
        return
    if not old.exists():
        return
    # Without its index it was already being deleted.
    if place.target.exists() or not (old / place.index).exists():
        # The index first: half of a folder must not look whole.
        files.remove(old / place.index)
        files.remove_folder(old)
    else:
        files.rename(old, place.target)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places at once; False where the system cannot.

    Raises:
        OSError: it could, and failed.
    """
    renameat2 = None
    if sys.platform == "linux":
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one))


@contextlib.contextmanager
def _built(folder: Path) -> Iterator[Path]:
    """An empty folder, gone at the end, whatever it is by then."""
    files.remove_folder(folder)
    files.make_folder(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # the next process tries again
            files.remove_folder(folder)


def _commit(new: Path, place: Place) -> None:
    """Everything to the disk, then the exchange of names."""
    _check_folder(place.target)
    _sync(new)
    if not place.target.exists():
        files.rename(new, place.target)
    elif not files.completed(exchange, new, place.target):
        files.rename(place.target, place.beside("old"))
        try:
            files.rename(new, place.target)
        except OSError:
            settle(place)
            raise
    files.sync(place.target.parent)
    with contextlib.suppress(OSError):  # the next process tries again
        settle(place)


def _place(new: Path, folder: Path, index: str, owned: Collection[str]) -> None:
    """Everything to the disk, then each file that is not the same to its place, the index last."""
    _sync(new)
    names = [path.relative_to(new) for path in sorted(new.rglob("*")) if path.is_file()]
    for name in {*names, *map(Path, owned)}:
        _check_file(folder / name)
    changed = [name for name in names if not _is_same(new / name, folder / name)]
    for parent in {(folder / name).parent for name in changed}:
        files.make_folders(parent)
    gone = [name for name in map(Path, owned) if name not in names and (folder / name).exists()]
    if len(changed) == 1 and not gone:
        files.replace(new / changed[0], folder / changed[0])
    elif changed or gone:
        files.make_folder(new / ".old")
        _exchange_all(new, folder, changed, gone, Path(index))
    for parent in {(folder / name).parent for name in changed}:
        files.sync(parent)


def _exchange_all(
    new: Path, folder: Path, changed: list[Path], gone: list[Path], index: Path
) -> None:
    """The index away, the others in, the index in; all of it back where a step fails."""
    old = new / ".old"
    steps = [(folder / index, old / "index")]
    for number, name in enumerate((*changed, *gone)):
        if name != index:
            steps += [(folder / name, old / f"{number}"), (new / name, folder / name)]
    steps.append((new / index if index in changed else old / "index", folder / index))
    done = []
    try:
        for source, target in steps:
            if source.exists():
                files.rename(source, target)
                done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            with contextlib.suppress(OSError):
                files.rename(target, source)
        raise


def _check_folder(target: Path) -> None:
    """Refuse to exchange what is no folder."""
    if target.exists() and not target.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target))


def _check_file(path: Path) -> None:
    """Refuse to replace what is no file."""
    if path.is_symlink():
        raise OSError(errno.EEXIST, "A link is there, which saving would replace", str(path))
    files.destination(path)


def _is_same(one: Path, other: Path) -> bool:
    return (
        other.is_file()
        and one.stat().st_size == other.stat().st_size
        and _digest(one) == _digest(other)
    )


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        files.sync(path)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Keep other processes out. The lock of one that was killed is nobody's."""
    if fcntl is None:
        yield
        return
    descriptor = _hold(lock)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a lock that stays is harmless
            files.remove(lock)
        os.close(descriptor)


def _hold(lock: Path) -> int:
    """Lock a file and give its descriptor."""
    while True:
        descriptor = files.completed(os.open, lock, _LOCK, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # the one before has just removed it
        except BlockingIOError as error:
            os.close(descriptor)
            raise BusyError from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)

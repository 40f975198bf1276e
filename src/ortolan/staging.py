"""Atomic writes of whole folders, and of groups of files.

The new version is built next to its target and moved there when every byte is on disk:

    bundle          the target
    .bundle.lock    held by the process that writes
    .bundle.new     the new version, while it is built
    .bundle.old     the old version, before it is deleted

`staged` replaces a folder. Linux swaps two folders in one call, so a killed process leaves the old
or the new one. Where the system cannot, there is no folder between two renames, and `settle` brings
the old one back. `placed` replaces some files of a folder; while several change, the index file,
without which the others are unusable, is absent. The next process that writes cleans up after a
killed one.
"""

import contextlib
import ctypes
import errno
import filecmp
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ortolan import files

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""

_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
"""Links are rejected: an untrusted bundle may contain one."""

_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a folder goes, and the name of the files next to it; by default the target's.

    Without the file `index` the folder is unusable, so that is deleted first.
    """

    target: Path
    index: str
    name: str = ""

    def sibling(self, role: str) -> Path:
        """Path of the lock, the new folder or the old folder."""
        return self.target.parent / f".{self.name or self.target.name}.{role}"


@contextlib.contextmanager
def staged(place: Place) -> Iterator[Path]:
    """Yield an empty folder that replaces the target when the block succeeds."""
    with locked(place):
        settle(place)
        with built(place) as folder:
            yield folder
            commit(folder, place)


@contextlib.contextmanager
def locked(place: Place, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Keep other processes out. Without `waiting`, a target that is locked is an error."""
    if not files.HAS_LOCKS:  # no lock against two processes with one target
        yield
        return
    lock = place.sibling("lock")
    descriptor = _hold(lock, waiting)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a leftover lock file is harmless
            files.remove(lock)
        os.close(descriptor)


@contextlib.contextmanager
def placed(folder: Path, *, index: str, owned: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder whose files, all or none, move to `folder` when the block succeeds.

    They replace files of the same names; other files stay. Subfolders are handled likewise. Links
    in the folder are neither followed nor replaced: they may point to shared files, as in a cache
    of the Hugging Face Hub.
    """
    files.make_folders(folder)
    place = Place(folder / index, index)
    with locked(place), built(place) as new:
        yield new
        _place(new, folder, index, owned)


def settle(place: Place) -> None:
    """Finish or undo what a killed process left next to the target."""
    old = place.sibling("old")
    if old.is_symlink():
        files.remove(old)  # not what it points to
        return
    if not old.exists():
        return
    # without its index it was already being deleted
    if place.target.exists() or not (old / place.index).exists():
        # the index first: half a folder must not look complete
        files.remove(old / place.index)
        files.remove_folder(old)
    else:
        files.rename(old, place.target)


def exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one system call; `False` if the system cannot."""
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
def built(place: Place) -> Iterator[Path]:
    """Create an empty folder next to a target, and remove whatever is there at the end."""
    folder = place.sibling("new")
    files.remove_folder(folder)
    files.make_folder(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # the next process tries again
            files.remove_folder(folder)


def commit(new: Path, place: Place) -> None:
    """Sync everything in a folder, then give it the name of the target."""
    if place.target.exists() and not place.target.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place.target))
    _sync(new)
    if not place.target.exists():
        files.rename(new, place.target)
    elif not files.completed(exchange, new, place.target):
        files.rename(place.target, place.sibling("old"))
        try:
            files.rename(new, place.target)
        except OSError:
            settle(place)
            raise
    files.sync(place.target.parent)
    with contextlib.suppress(OSError):  # the next process tries again
        settle(place)


def _place(new: Path, folder: Path, index: str, owned: Collection[str]) -> None:
    """Sync everything, then move each changed file to its place, the index last."""
    _sync(new)
    names = [path.relative_to(new) for path in sorted(new.rglob("*")) if path.is_file()]
    for path in (folder / name for name in {*names, *map(Path, owned)}):
        if path.is_symlink():
            raise OSError(errno.EEXIST, "A link is there, which saving would replace", str(path))
        files.destination(path)
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
    """Move the index away, the other files in, and the index in; undo it if a step fails."""
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


def _is_same(one: Path, other: Path) -> bool:
    filecmp.clear_cache()  # a file system with coarse times has no others for the next version
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        files.sync(path)


def _hold(lock: Path, waiting: Callable[[], None] | None) -> int:
    """Lock a file and return its descriptor."""
    while True:
        descriptor = files.completed(os.open, lock, _LOCK, 0o600)
        try:
            try:
                files.lock(descriptor)
            except BlockingIOError:
                if waiting is None:
                    raise
                waiting()
                files.lock(descriptor, waits=True)
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # the previous holder has just removed it
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)

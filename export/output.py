"""Puts a bundle in its place, whole or not at all.

A bundle is built in a folder beside its target and renamed into place when every byte is on
the disk. Killed at any moment, an export leaves the old bundle, or none where the old one
was just being exchanged; `settle` then brings the old one back.

Beside a target `bundle` there may be `.bundle.lock`, held by an export that runs, `.bundle.new`,
which it builds, and `.bundle.old`, which it is about to delete.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from ortolan.export.errors import OutputError
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.manifest import File, Manifest
from ortolan.runtime.errors import ManifestError

PACKED = ("packed-", ".packing")
"""How the names of folders begin that are beside a bundle's files and derived from them."""

try:
    import fcntl
except ImportError:  # Windows: two exports to one target are not kept apart
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to build a bundle in, which becomes `target` when the block ends well.

    Args:
        target: where the bundle goes; a symbolic link is followed and stays.
        force: replace a bundle that stands there.

    Raises:
        OutputError: something else stands there, another export is writing there, or the
            place cannot be written to.
    """
    target = target.resolve()
    staging = _beside(target, "new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            settle(target)
            _check_target(target, force)
            if staging.exists():
                shutil.rmtree(staging)
            staging.mkdir()
            try:
                yield staging
                # The export took its time: somebody may have put something there.
                _check_target(target, force)
                _commit(staging, target)
            finally:
                # Still there when the block failed; renamed away when it did not.
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"{target}: expected to write a bundle there, got: {error}. "
            "Check the room on the disk and the right to write."
        ) from error


def settle(target: Path) -> None:
    """Finish or undo what an export that was killed left beside its target."""
    old = _beside(target, "old")
    if not old.exists():
        return
    # Without a manifest it was already being deleted.
    if target.exists() or not (old / manifest_file.NAME).exists():
        _discard(old)
    else:
        old.rename(target)


def describe_files(folder: Path, known: tuple[File, ...] = ()) -> tuple[File, ...]:
    """Size and hash of every file of a folder but its manifest, sorted by name.

    Args:
        folder: the bundle.
        known: files that are not to be read again.
    """
    described = {file.name: file for file in known}
    for path in folder.iterdir():
        if path.name != manifest_file.NAME and path.name not in described:
            size = path.stat().st_size
            described[path.name] = File(name=path.name, size=size, sha256=_sha256(path))
    return tuple(described[name] for name in sorted(described))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, the last file of a bundle."""
    (folder / manifest_file.NAME).write_bytes(manifest_file.encode(manifest))


def _beside(target: Path, role: str) -> Path:
    return target.parent / f".{target.name}.{role}"


def _check_target(target: Path, force: bool) -> None:
    """Raise OutputError unless the target is free, or a bundle and nothing else with `force`."""
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target}: expected a folder or nothing, got a file. Choose another.")
    # What `ortolan pack` made of a bundle goes with it.
    names = {path.name for path in target.iterdir() if not path.name.startswith(PACKED)}
    ours = _bundle_names(target)
    if not names:
        return
    if not ours:
        got, advice = "a folder that is no bundle", "Choose an empty folder."
    elif names - ours:
        got = f"a bundle with other files beside it ({', '.join(sorted(names - ours)[:3])})"
        advice = "Move them away, or choose an empty folder."
    elif not force:
        got, advice = "a bundle", "Give --force to replace it."
    else:
        return
    raise OutputError(f"{target}: expected nothing there, got {got}. {advice}")


def _bundle_names(folder: Path) -> set[str]:
    """Names of the files of a bundle; none where the folder is no bundle."""
    try:
        manifest = manifest_file.decode((folder / manifest_file.NAME).read_bytes())
    except (FileNotFoundError, ManifestError):
        return set()
    return {manifest_file.NAME, *(file.name for file in manifest.files)}


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold a target against other exports."""
    if fcntl is None:
        yield
        return
    lock = _beside(target, "lock")
    with lock.open("ab") as file:
        if not _hold(lock, file.fileno()):
            raise OutputError(
                f"{target}: expected no other export to it, got one that is running. Wait for it."
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # left behind, it hinders nobody
                lock.unlink()


def _hold(lock: Path, descriptor: int) -> bool:
    """Lock an open file; False where another export has locked it, or just removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _commit(staging: Path, target: Path) -> None:
    """Everything to the disk, then the exchange of names."""
    for path in (*staging.iterdir(), staging):
        _sync(path)
    if target.exists():
        target.rename(_beside(target, "old"))
    try:
        staging.rename(target)
    except OSError:
        settle(target)
        raise
    _sync(target.parent)
    with contextlib.suppress(OSError):  # the next export tries again
        settle(target)


def _discard(folder: Path) -> None:
    """Delete a bundle, its manifest first: half of one must not look whole."""
    (folder / manifest_file.NAME).unlink(missing_ok=True)
    shutil.rmtree(folder)


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


def _sha256(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

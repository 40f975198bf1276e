"""Puts a bundle in its place, whole or not at all.

A bundle is built in a folder beside its target and renamed into place when every byte is on
the disk. Killed at any moment, an export leaves the old bundle, or none where the old one
was just being exchanged; `settle` then brings the old one back.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from ortolan.export.errors import OutputError
from ortolan.runtime import manifest as manifests
from ortolan.runtime.manifest import File, Manifest

try:
    import fcntl
except ImportError:  # Windows: two exports to one target are not kept apart
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to build a bundle in, which becomes `target` when the block ends well.

    Args:
        target: where the bundle goes.
        force: replace a bundle that stands there.

    Raises:
        OutputError: something stands there, or another export is writing there.
    """
    settle(target)
    _check_target(target, force)
    staging = _beside(target, "new")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(staging):
        _empty(staging)
        try:
            yield staging
            _commit(staging, target)
        finally:
            # Still there when the block failed; renamed away when it did not.
            shutil.rmtree(staging, ignore_errors=True)


def settle(target: Path) -> None:
    """Finish or undo what an export that was killed left beside its target."""
    old = _beside(target, "old")
    if old.exists():
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)


def describe_files(folder: Path) -> tuple[File, ...]:
    """Size and hash of every file of a folder but its manifest, sorted by name."""
    return tuple(
        File(name=path.name, size=path.stat().st_size, sha256=_sha256(path))
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json"
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, the last file of a bundle."""
    (folder / "manifest.json").write_bytes(manifests.encode(manifest))


def _beside(target: Path, role: str) -> Path:
    return target.parent / f".{target.name}.{role}"


def _check_target(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target}: expected a folder or nothing, got a file. Choose another.")
    is_bundle = (target / "manifest.json").is_file()
    if any(target.iterdir()) and not (force and is_bundle):
        advice = "Give --force to replace it." if is_bundle else "Choose an empty folder."
        kind = "a bundle" if is_bundle else "a folder that is no bundle"
        raise OutputError(f"{target}: expected nothing there, got {kind}. {advice}")


@contextlib.contextmanager
def _locked(staging: Path) -> Iterator[None]:
    """Hold the staging folder against another export to the same target."""
    staging.mkdir(exist_ok=True)
    if fcntl is None:
        yield
        return
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other export may have renamed the folder between our open and our lock.
            mine = os.path.samestat(os.fstat(descriptor), staging.stat())
        except OSError:
            mine = False
        if not mine:
            raise OutputError(
                f"{staging.parent}: expected no other export to this target, got one that is "
                "running. Wait for it."
            )
        yield
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _commit(staging: Path, target: Path) -> None:
    """Everything to the disk, then the exchange of names."""
    for path in (*staging.iterdir(), staging):
        _sync(path)
    old = _beside(target, "old")
    if target.exists():
        target.rename(old)
    staging.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
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

"""Puts a bundle in its place, whole or not at all (`ortolan.staging`)."""

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ortolan import files
from ortolan.export.errors import OutputError
from ortolan.runtime.bundle import manifest_file, trust
from ortolan.runtime.bundle.manifest import File, Manifest
from ortolan.runtime.errors import ManifestError
from ortolan.staging import BusyError, Place, staged

_log = logging.getLogger("ortolan.export")

PACKED = ("packed-", ".packing")
"""Beginnings of the names of what `ortolan pack` writes beside a bundle's files."""


def place_of(target: Path) -> Place:
    """Where a bundle goes; a symbolic link is followed and stays."""
    return Place(files.followed(target), index=manifest_file.NAME)


@contextlib.contextmanager
def staged_bundle(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to build a bundle in, which becomes `target` when the block ends well.

    Args:
        target: where the bundle goes.
        force: replace a bundle that is there.

    Raises:
        OutputError: something else is there, another export is writing there, or the
            place cannot be written to.
    """
    try:
        place = place_of(target)
        target = place.target
        files.make_folders(target.parent)
        with staged(place) as folder:
            _check_target(target, force)
            yield folder
            # Something may have been put there during the export.
            _check_target(target, force)
    except BusyError as error:
        raise OutputError(
            f"{target}: expected no other export to it, got one that is running. Wait for it."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{target}: expected to write a bundle there, got: {error}. "
            "Check the free space on the disk and the permissions."
        ) from error


def describe_files(folder: Path, known: tuple[File, ...] = ()) -> tuple[File, ...]:
    """Size and hash of every file of a folder but its manifest and its seal, sorted by name.

    Args:
        folder: the bundle.
        known: files that are not to be read again.
    """
    described = {file.name: file for file in known}
    for path in folder.iterdir():
        if path.name not in {manifest_file.NAME, trust.NAME, *described}:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            described[path.name] = File(name=path.name, size=path.stat().st_size, sha256=digest)
    return tuple(described[name] for name in sorted(described))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, the last file of a bundle, and a seal where somebody has to trust it."""
    files.write(folder / manifest_file.NAME, manifest_file.encode(manifest))
    if not manifest.foreign_operators:
        return
    try:
        trust.trust(folder, manifest)
    except OSError as error:
        _log.warning(
            "expected to seal operators of the module's own for this user, got: %s. The bundle "
            "opens with trust=True alone.",
            error,
        )


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
    return {manifest_file.NAME, trust.NAME, *(file.name for file in manifest.files)}

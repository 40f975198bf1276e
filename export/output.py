"""Moves a finished bundle into place, whole or not at all (`ortolan.staging`)."""

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ortolan import files
from ortolan.export.errors import OutputError
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.manifest import NAME, File, Manifest
from ortolan.runtime.errors import ManifestError
from ortolan.staging import Place, staged

_log = logging.getLogger("ortolan.export")

PACKED = ("packed-", ".packing")
"""Prefixes of the names that `ortolan pack` adds to a bundle."""


def place_of(target: Path) -> Place:
    """The place of a bundle; a symbolic link is followed and stays."""
    return Place(files.followed(target), index=NAME)


@contextlib.contextmanager
def staged_bundle(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to build a bundle in, which becomes `target` when the block succeeds."""
    try:
        place = place_of(target)
        target = place.target
        files.make_folders(target.parent)
        with staged(place) as folder:
            _check_target(target, force)
            yield folder
            # Again: the target may have been used during the export.
            _check_target(target, force)
    except OSError as error:
        raise OutputError(f"Cannot export to {target}: {files.described(error)}") from error


def describe_files(folder: Path, described: tuple[File, ...] = ()) -> tuple[File, ...]:
    """Size and hash of every file of a bundle except its manifest, sorted by name."""
    files_by_name = {file.name: file for file in described}
    for path in folder.iterdir():
        if path.is_file() and path.name not in {NAME, *files_by_name}:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files_by_name[path.name] = File(name=path.name, size=path.stat().st_size, sha256=digest)
    return tuple(files_by_name[name] for name in sorted(files_by_name))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, last."""
    files.write(folder / NAME, manifest_file.encode(manifest))


def _check_target(target: Path, force: bool) -> None:
    """Raise OutputError unless the target is free, or only a bundle and `force` is set."""
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target} is a file. Choose a folder.")
    # Packed weights belong to the bundle and are replaced with it.
    names = {path.name for path in target.iterdir() if not path.name.startswith(PACKED)}
    ours = _bundle_names(target)
    if not names:
        return
    if not ours:
        problem = "is a folder but not a bundle. Choose an empty folder."
    elif names - ours:
        others = ", ".join(sorted(names - ours)[:3])
        problem = f"is a bundle with other files ({others}). Move them, or choose an empty folder."
    elif not force:
        problem = "is a bundle. Pass --force to replace it."
    else:
        return
    raise OutputError(f"{target} {problem}")


def _bundle_names(folder: Path) -> set[str]:
    """Names of the files of a bundle; none if the folder is not a bundle."""
    try:
        manifest = manifest_file.decode((folder / NAME).read_bytes())
    except (FileNotFoundError, ManifestError):
        return set()
    folders = {folder for folder, _ in manifest.parts.values()}
    return {NAME, *folders, *(file.name for file in manifest.files)}

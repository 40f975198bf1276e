"""Moves a finished bundle or adapter into place, whole or not at all (`ortolan.staging`)."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ortolan import files
from ortolan.export.errors import OutputError
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.manifest import NAME, File, Manifest
from ortolan.runtime.errors import ManifestError
from ortolan.staging import Place, staged

PACKED = ("packed-", ".packing")
"""Prefixes of the names that `ortolan pack` adds to a bundle."""


@contextlib.contextmanager
def staged_folder(
    target: Path, index: str, what: str, names: Callable[[Path], set[str]], *, force: bool
) -> Iterator[Path]:
    """A folder to build a bundle or an adapter in, which becomes `target` when the block succeeds.

    Args:
        target: a folder that is free, or has only files of its kind.
        index: name of the file without which it is unusable.
        what: a bundle or an adapter, with its article.
        names: names of the files of such a folder; none if it is not one.
        force: replace one.
    """
    try:
        place = Place(files.followed(target), index=index)
        target = place.target
        files.make_folders(target.parent)
        with staged(place) as folder:
            _check_target(target, what, names, force)
            yield folder
            # Again: the target may have been used during the export.
            _check_target(target, what, names, force)
    except OSError as error:
        raise OutputError(f"Cannot export to {target}: {files.described(error)}") from error


@contextlib.contextmanager
def staged_bundle(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to build a bundle in, which becomes `target` when the block succeeds."""
    with staged_folder(target, NAME, "a bundle", _bundle_names, force=force) as folder:
        yield folder


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
    """Write manifest.json, after the files that it describes."""
    files.write(folder / NAME, manifest_file.encode(manifest))


def _check_target(
    target: Path, what: str, names_of: Callable[[Path], set[str]], force: bool
) -> None:
    """Raise OutputError unless the target is free, or only of its kind and `force` is set."""
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target} is a file. Choose a folder.")
    # Packed weights belong to the bundle and are replaced with it.
    names = {path.name for path in target.iterdir() if not path.name.startswith(PACKED)}
    if not names:
        return
    ours = names_of(target)
    if not ours:
        problem = f"is a folder but not {what}. Choose an empty folder."
    elif names - ours:
        others = ", ".join(sorted(names - ours)[:3])
        problem = f"is {what} with other files ({others}). Move them, or choose an empty folder."
    elif not force:
        problem = f"is {what}. Pass --force to replace it."
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

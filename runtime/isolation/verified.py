"""Which bundles passed a verification, by this user, on this machine, with this onnxruntime.

A record is a small file of the user's state folder, named by the hash of the bundle's manifest,
which has those of all its files. It keeps, too, what the file system said of each file when it was
read: where that is still so, the files need not be read again to know that they are the same.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan import files
from ortolan.runtime.bundle.bundle import Bundle, check_file
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError
from ortolan.runtime.machine.processor import processor_features
from ortolan.runtime.machine.state_folder import state_folder

__all__ = ["Marks", "is_verified", "marks", "remember"]

Marks = Mapping[str, tuple[int, int, int, int]]
"""Of each file of a folder, by name: number, size, and times of the last changes, in ns."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    onnxruntime: str
    processor: tuple[str, ...]
    files: dict[str, tuple[int, int, int, int]]


def marks(folder: str | os.PathLike[str]) -> Marks:
    """What the file system says of the files of a folder; nothing of one that cannot be listed."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            seen = os.stat(entry.path, follow_symlinks=False)
            found[entry.name] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return found


def remember(bundle: Bundle, seen: Marks, *, onnxruntime: str) -> None:
    """Keep that a bundle passed. Where the state folder cannot be written, it is not kept.

    Args:
        bundle: every file of it was read, and was as the manifest says.
        seen: its marks from before that.
        onnxruntime: the version that it passed with.
    """
    names = [file.name for file in bundle.manifest.files]
    if any(name not in seen for name in names):
        return
    record = _Record(
        onnxruntime=onnxruntime,
        processor=processor_features(),
        files={name: seen[name] for name in names},
    )
    path = _path(bundle)
    with contextlib.suppress(OSError):
        files.make_folders(path.parent, mode=0o700)
        with files.replaced(path, is_private=True, is_synced=False) as file:
            file.write(msgspec.json.encode(record))


def is_verified(bundle: Bundle, *, onnxruntime: str) -> bool:
    """Whether a bundle passed, and is as it was then.

    Args:
        bundle: opened and checked; its weights need not have been read.
        onnxruntime: the version in use. Passing with another one does not count.
    """
    try:
        record = msgspec.json.decode(_path(bundle).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    if (record.onnxruntime, record.processor) != (onnxruntime, processor_features()):
        return False
    seen = marks(bundle.path)
    if all(seen.get(name) == mark for name, mark in record.files.items()):
        return True
    if not _has_its_weights(bundle):
        return False
    remember(bundle, seen, onnxruntime=onnxruntime)  # a copy, say
    return True


def _has_its_weights(bundle: Bundle) -> bool:
    """Read the weights; everything else was read when the bundle was opened."""
    try:
        for file in bundle.manifest.files:
            if file.name in bundle.manifest.weights:
                check_file(bundle.path, file, is_read=True)
    except BundleError:
        return False
    return True


def _path(bundle: Bundle) -> Path:
    return state_folder() / "verified" / f"{fingerprint(bundle.manifest)}.json"

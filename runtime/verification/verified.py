"""Remembers the bundles that were made or verified, or passed a first load.

That is per user, machine and onnxruntime version.

A record is a small file in the user's state folder, named by the fingerprint of the bundle's
manifest, which contains the hashes of all files. It also holds the file system's stamps of each
file: as long as they are unchanged, the weights need not be read again.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan import files
from ortolan.cache import state_folder
from ortolan.runtime.bundle.bundle import Bundle, check_file
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError
from ortolan.runtime.machine.processor import processor_features

Stamps = Mapping[str, tuple[int, int, int, int]]
"""Inode, size, mtime and ctime in ns, by file name."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    onnxruntime: str
    processor: tuple[str, ...]
    files: dict[str, tuple[int, int, int, int]]


def stamps(folder: str | os.PathLike[str]) -> Stamps:
    """Stamps of the files in a folder; empty if it cannot be listed."""
    by_name = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            stat = os.stat(entry.path, follow_symlinks=False)
            by_name[entry.name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return by_name


def remember(bundle: Bundle, before: Stamps, *, onnxruntime: str) -> None:
    """Record that a bundle passed; do nothing if the state folder cannot be written."""
    names = [file.name for file in bundle.manifest.files]
    if any(name not in before for name in names):
        return
    record = _Record(
        onnxruntime=onnxruntime,
        processor=processor_features(),
        files={name: before[name] for name in names},
    )
    path = _path(bundle)
    with contextlib.suppress(OSError):
        files.make_folders(path.parent, mode=0o700)
        with files.replaced(path, is_private=True, is_synced=False) as file:
            file.write(msgspec.json.encode(record))


def is_verified(bundle: Bundle, *, onnxruntime: str) -> bool:
    """Whether this version of onnxruntime passed the bundle, and its files are the same.

    The bundle must be opened and checked; its weights are read here if their stamps changed.
    """
    try:
        record = msgspec.json.decode(_path(bundle).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    if (record.onnxruntime, record.processor) != (onnxruntime, processor_features()):
        return False
    now = stamps(bundle.path)
    if all(now.get(name) == stamp for name, stamp in record.files.items()):
        return True
    try:
        for file in bundle.manifest.files:
            if file.name in bundle.manifest.weights:
                check_file(bundle.path, file, is_read=True)
    except BundleError:
        return False
    remember(bundle, now, onnxruntime=onnxruntime)  # a copy, for example
    return True


def _path(bundle: Bundle) -> Path:
    return state_folder() / "verified" / f"{fingerprint(bundle.manifest)}.json"

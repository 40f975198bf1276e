"""Opens plain files of a folder, and nothing else.

An untrusted bundle may contain links to the user's files, a pipe that blocks, or a device.
Hard links are rejected because onnxruntime accepts them; but the cache of Ortolan has its own, to
files of the Hub's cache.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ortolan.cache import cache_folder
from ortolan.runtime.errors import BundleFileError

# relative to an open folder no part of the path can be swapped for a link (not on Windows)
_BENEATH = {os.open, os.stat} <= os.supports_dir_fd

# O_NONBLOCK: opening a pipe returns at once; it has no effect on files
_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def open_plain(folder: Path, name: str) -> BinaryIO:
    """Open a plain file in a folder that has no other name.

    Links in the path of the folder are followed, since users link to bundles.
    """
    try:
        descriptor = _open(folder, name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleFileError(
            f"{name} cannot be read: {error.strerror}. "
            "Check the permissions of the bundle and the disk."
        ) from error
    return os.fdopen(descriptor, "rb", buffering=0)


def _open(folder: Path, name: str) -> int:
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if _BENEATH else None
    target = folder / name if parent is None else Path(name)
    try:
        # check before opening: merely opening a device can have an effect
        before = os.stat(target, dir_fd=parent, follow_symlinks=False)
        _check_plain(name, before)
        _check_links(folder, name, before)
        descriptor = os.open(target, _FLAGS, dir_fd=parent)
    finally:
        if parent is not None:
            os.close(parent)
    try:
        after = os.fstat(descriptor)
        _check_plain(name, after)
        _check_links(folder, name, after)
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
            raise BundleFileError(
                f"{name} was replaced while it was opened. "
                "Something is writing to the bundle: open it again."
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_plain(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "a device")
        raise BundleFileError(
            f"{name} is {kind}, not a plain file. "
            "Copy its folder with links followed (cp -rL), or make it again."
        )


def _check_links(folder: Path, name: str, status: os.stat_result) -> None:
    if status.st_nlink != 1 and not folder.resolve().is_relative_to(cache_folder().resolve()):
        raise BundleFileError(
            f"{name} has {status.st_nlink} hard links. "
            "Copy its folder (cp -r) instead of linking its files."
        )

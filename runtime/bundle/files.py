"""Opening one file of a folder, and never anything else.

A bundle from outside may hold links to files of the user, a pipe that blocks, a device. ONNX
Runtime accepts hard links, so this does not.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ortolan.runtime.errors import BundleFileError

__all__ = ["open_plain"]

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
    """Open a file that lies in a folder itself and has no other name.

    Links in the path of the folder are followed; users link to bundles.

    Returns:
        An unbuffered stream; the caller closes it.

    Raises:
        FileNotFoundError: there is no such file.
        BundleFileError: a link, a folder, a pipe, a device, or unreadable. Names the file.
    """
    try:
        descriptor = _open(folder, name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleFileError(
            f"{name}: expected a readable file, got {error.strerror}. "
            "Check the permissions of the bundle and the disk."
        ) from error
    return os.fdopen(descriptor, "rb", buffering=0)


def _open(folder: Path, name: str) -> int:
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if _BENEATH else None
    target = folder / name if parent is None else Path(name)
    try:
        # looked at first: merely opening a device can have an effect
        before = os.stat(target, dir_fd=parent, follow_symlinks=False)
        _check_plain(name, before)
        descriptor = os.open(target, _FLAGS, dir_fd=parent)
    finally:
        if parent is not None:
            os.close(parent)
    try:
        after = os.fstat(descriptor)
        _check_plain(name, after)
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
            raise BundleFileError(
                f"{name}: expected one file, got another while it was opened. "
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
            f"{name}: expected a plain file, got {kind}. "
            "Copy the bundle with its links followed (cp -rL), or export it again."
        )
    if status.st_nlink != 1:
        raise BundleFileError(
            f"{name}: expected a file with one name, got {status.st_nlink} hard links to it. "
            "Copy the bundle (cp -r) instead of linking its files."
        )

"""Blocks of a prefix cache in a folder, a file each.

Several processes, of any bundles, may use one folder at once: a file has the key of its block as
its name, is renamed into place when it is whole, and is never changed. What a file says of itself
is checked whenever it is read. A file that does not hold what its name stands for is removed, and
a warning of the logger `ortolan.runtime` says why.

A thread of its own writes, since a disk may take its time. At most `PENDING_BYTES` wait for it;
a block that comes meanwhile is written when it is next used.
"""

import contextlib
import logging
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ortolan import files
from ortolan.runtime.engine.slots import Slots, Snapshot
from ortolan.runtime.engine.state_file import file_size, read_states, write_states
from ortolan.runtime.errors import InputError, StateFileError

__all__ = ["PENDING_BYTES", "PrefixFiles"]

PENDING_BYTES = 64 << 20
"""64 MiB, beside the budget of what is kept in memory."""

_NAME = re.compile(r"[0-9a-f]{64}\.block|\.[0-9a-f]{64}\.block\.[0-9a-f]{16}")
"""Of files, and of those that a process is writing, or was when it was killed."""

_log = logging.getLogger("ortolan.runtime")


class PrefixFiles:
    """The files of a folder, up to a number of bytes; the least recent ones go first.

    One thread at a time calls its methods.

    Args:
        folder: made where it is missing, for its owner alone.
        most_bytes: of all of its blocks, of whatever bundle.

    Raises:
        InputError: the folder can be neither made nor written to.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        try:
            files.make_folders(folder, mode=0o700)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise _no_folder(folder, str(error)) from error
        if not is_writable:
            raise _no_folder(folder, "one that this process may not write to")
        self._folder = folder
        self._most_bytes = most_bytes
        self._known: set[bytes] = set()
        self._pending = 0
        self._lock = threading.Lock()  # of what waits
        self._writer = ThreadPoolExecutor(1, "ortolan-prefix-files")

    def has(self, key: bytes) -> bool:
        """Whether a block is known to be there, or about to be."""
        return key in self._known

    def read(self, key: bytes, ids: bytes, slots: Slots, *, after: bytes) -> Snapshot | None:
        """The states of a block; `None` where it is not there, or is something else.

        Args:
            key: of the block.
            ids: its tokens, as int32.
            slots: of the bundle.
            after: the key of the block before it.
        """
        path = self._path(key)
        try:
            found, states = read_states(path, slots, after=after.hex())
            if np.array(found, "<i4").tobytes() != ids:
                raise StateFileError(f"{path.name}: expected the tokens of its name, got others.")
        except FileNotFoundError:
            self._known.discard(key)
            return None
        except (OSError, StateFileError) as error:
            self._known.discard(key)
            _log.warning("prefix cache: removed a file from %s. %s", self._folder, error)
            _remove(path)
            return None
        self._known.add(key)
        return states

    def write(self, keys: list[bytes], ids: bytes, states: Snapshot, *, after: bytes) -> None:
        """Have a block written, unless it is there.

        Args:
            keys: of the blocks before it, and its own.
            ids: its tokens, as int32.
            states: of its own, which nobody changes.
            after: the key of the block before it.
        """
        key = keys[-1]
        if key in self._known:
            return
        size = file_size(states, after=after.hex())
        if size > self._most_bytes:
            return
        with self._lock:
            if self._pending + size > PENDING_BYTES:
                return
            self._pending += size
        self._known.add(key)
        with contextlib.suppress(RuntimeError):  # the interpreter is about to exit
            self._writer.submit(self._write, list(keys), ids, states, after, size)

    def touch(self, keys: list[bytes]) -> None:
        """Make the files of a chain the most recent ones, the first of them most of all."""
        now = time.time_ns()
        for place, key in enumerate(keys):
            with contextlib.suppress(OSError):  # another process has removed it
                os.utime(self._path(key), ns=(now - place, now - place))

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown()

    # --- in the thread that writes ----------------------------------------------------------------

    def _write(
        self, keys: list[bytes], ids: bytes, states: Snapshot, after: bytes, size: int
    ) -> None:
        path = self._path(keys[-1])
        try:
            if not path.exists():
                self._make_room(size)
                tokens = np.frombuffer(ids, "<i4").tolist()
                write_states(path, tokens, states, after=after.hex(), sync=False)
            self.touch(keys)
        except OSError as error:
            self._known.discard(keys[-1])
            _log.warning("prefix cache: a file of %s was not written: %s", self._folder, error)
        finally:
            with self._lock:
                self._pending -= size

    def _make_room(self, size: int) -> None:
        found = []
        for entry in os.scandir(self._folder):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.name))
        size += sum(each for _, each, _ in found)
        for _, freed, name in sorted(found):
            if size <= self._most_bytes:
                break
            _remove(self._folder / name)
            self._known.discard(bytes.fromhex(name[:64]) if name[0] != "." else b"")
            size -= freed

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.block"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process was first
        files.remove(path)


def _no_folder(folder: Path, got: str) -> InputError:
    return InputError(
        f"cache_folder: expected a folder that can be written to, got {folder}: {got}. "
        "Choose another."
    )

"""Files of a prefix cache: one per block, named after the block's key.

Several processes, with any bundles, may use one folder at once: a file is renamed into place when
it is complete and never changes afterwards. Every read checks the file against its name; a file
that does not match is removed, and the logger `ortolan.runtime` warns with the reason.

Files are written in a separate thread, since disks can be slow. At most `PENDING_BYTES` wait for
it; blocks beyond that are written when they are next used.
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
from ortolan.runtime import limits
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.state_file import file_size, read_states, write_states
from ortolan.runtime.errors import InputError, StateFileError

PENDING_BYTES = 64 << 20
"""Most bytes waiting to be written, on top of the memory limit of the cache."""

_NAME = re.compile(r"[0-9a-f]{64}\.block|\.[0-9a-f]{64}\.block\.[0-9a-f]{16}")
"""Names of block files, and of temporary files that a killed process may leave behind."""

_log = logging.getLogger("ortolan.runtime")


class PrefixFiles:
    """The block files of a folder. Beyond `most_bytes` the least recently used files are removed.

    Calls come from one thread at a time.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        try:
            files.make_folders(folder, mode=0o700)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise _no_folder(folder, str(error)) from error
        if not is_writable:
            raise _no_folder(folder, "permission denied")
        self._folder = folder
        self._most_bytes = most_bytes
        self._on_disk: set[bytes] = set()
        self._pending = 0
        self._lock = threading.Lock()  # guards _pending
        self._writer = ThreadPoolExecutor(1, "ortolan-prefix-files")

    def has(self, key: bytes) -> bool:
        """Whether a block has a file, or is about to, as far as this process knows."""
        return key in self._on_disk

    def read(
        self, key: bytes, ids: bytes, slots: Slots, *, after: bytes, row: int = 0
    ) -> Snapshot | None:
        """Read the states of a block of ids, as int64; `None` if there is no valid file."""
        path = self._path(key)
        try:
            stored, states = read_states(path, slots, after=after.hex(), row=row)
            if np.array(stored, "<i8").tobytes() != ids:
                raise StateFileError(f"{path.name} holds other tokens than its name says.")
        except FileNotFoundError:
            self._on_disk.discard(key)
            return None
        except MemoryError:
            return None
        except (OSError, StateFileError) as error:
            self._on_disk.discard(key)
            _log.warning("prefix cache: removed a file from %s. %s", self._folder, error)
            _remove(path)
            return None
        self._on_disk.add(key)
        return states

    def write(self, keys: list[bytes], ids: bytes, states: Snapshot, *, after: bytes) -> None:
        """Queue the last block of a chain to be written, unless it has a file, or holds images.

        The states are a copy that nothing else changes.
        """
        key = keys[-1]
        if key in self._on_disk or np.frombuffer(ids, "<i8").max() > limits.MAX_VOCABULARY:
            return
        size = file_size(states, after=after.hex())
        if size > self._most_bytes:
            return
        with self._lock:
            if self._pending + size > PENDING_BYTES:
                return
            self._pending += size
        self._on_disk.add(key)
        with contextlib.suppress(RuntimeError):  # the interpreter is exiting
            self._writer.submit(self._write, list(keys), ids, states, after, size)

    def touch(self, keys: list[bytes]) -> None:
        """Make the files of a chain the most recent, the first one most of all."""
        now = time.time_ns()
        for index, key in enumerate(keys):
            with contextlib.suppress(OSError):  # removed by another process
                os.utime(self._path(key), ns=(now - index, now - index))

    def close(self) -> None:
        """Wait until all queued files are written."""
        self._writer.shutdown()

    # --- in the writing thread --------------------------------------------------------------------

    def _write(
        self, keys: list[bytes], ids: bytes, states: Snapshot, after: bytes, size: int
    ) -> None:
        path = self._path(keys[-1])
        try:
            if not path.exists():
                self._make_room(size)
                tokens = np.frombuffer(ids, "<i8").tolist()
                write_states(path, tokens, states, after=after.hex(), sync=False)
            self.touch(keys)
        except (OSError, MemoryError) as error:
            self._on_disk.discard(keys[-1])
            _log.warning("prefix cache: a file in %s was not written: %s", self._folder, error)
        finally:
            with self._lock:
                self._pending -= size

    def _make_room(self, size: int) -> None:
        present = []
        for entry in os.scandir(self._folder):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    present.append((status.st_mtime_ns, status.st_size, entry.name))
        size += sum(file_bytes for _, file_bytes, _ in present)
        for _, freed, name in sorted(present):
            if size <= self._most_bytes:
                break
            _remove(self._folder / name)
            self._on_disk.discard(bytes.fromhex(name[:64]) if name[0] != "." else b"")
            size -= freed

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.block"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # removed by another process
        files.remove(path)


def _no_folder(folder: Path, reason: str) -> InputError:
    return InputError(f"cache_folder: cannot write to {folder}: {reason}. Choose another folder.")

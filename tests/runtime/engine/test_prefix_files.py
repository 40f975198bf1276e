import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.slot_states import KEY, SUM, filled

from ortolan.runtime.engine import prefix_files
from ortolan.runtime.engine.prefix_files import PrefixFiles
from ortolan.runtime.engine.slots import Slots, Snapshot
from ortolan.runtime.engine.state_file import file_size
from ortolan.runtime.errors import InputError

REPOSITORY = Path(__file__).parents[3]
IDS = np.arange(16, dtype="<i8").tobytes()

OTHER_IDS = np.arange(16, dtype="<i8")[::-1].tobytes()
ROOT = bytes(32)


def new_slots(identity: str = "bundle") -> Slots:
    return Slots((KEY, SUM), count=1, context_length=100, identities=(identity,))


STATES = filled(new_slots(), 16).snapshot()
SIZE = file_size(STATES, after=ROOT.hex())
SLOTS = new_slots()


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[PrefixFiles]:
    prefix_files = PrefixFiles(tmp_path, most_bytes=4 * SIZE)
    yield prefix_files
    prefix_files.close()


def written(files: PrefixFiles, *numbers: int, states: Snapshot = STATES) -> Path:
    """Write a chain of blocks, and wait; the path of the last one."""
    keys = [key_of(number) for number in numbers]
    for count in range(1, len(keys) + 1):
        files.write(keys[:count], IDS, states, after=ROOT)
        wait(files)
    return files._path(keys[-1])


def wait(files: PrefixFiles) -> None:
    files._writer.submit(lambda: None).result()


def read(files: PrefixFiles, number: int, ids: bytes = IDS) -> Snapshot | None:
    return files.read(key_of(number), ids, SLOTS, after=ROOT)


def names(folder: Path) -> list[int]:
    return sorted(int.from_bytes(bytes.fromhex(path.stem), "little") for path in folder.iterdir())


def test_another_process_reads_what_was_written(files: PrefixFiles, tmp_path: Path) -> None:
    path = written(files, 1)
    assert path.stat().st_size == SIZE
    other = PrefixFiles(tmp_path, most_bytes=4 * SIZE)
    assert not other.has(key_of(1))
    states = read(other, 1)
    other.close()
    assert states is not None
    assert other.has(key_of(1))
    for got, want in zip(states.buffers, STATES.buffers, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_missing_block_is_none(files: PrefixFiles, caplog: pytest.LogCaptureFixture) -> None:
    assert read(files, 1) is None
    written(files, 1).unlink()
    assert files.has(key_of(1))
    assert read(files, 1) is None
    assert not files.has(key_of(1))
    assert not caplog.records


def damaged(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "expected the bytes that were written"),
        (lambda content: content[:-1], f"expected {SIZE} bytes, got {SIZE - 1}"),
        (lambda content: content[:20], "expected a header"),
        (lambda content: b"", "expected a file that Ortolan saved"),
        (lambda content: content + b"\0", f"expected {SIZE} bytes, got {SIZE + 1}"),
        (lambda content: content[:8] + b"\0" + content[9:], "expected version 1, got 0"),
        (lambda content: b"something else", "expected a file that Ortolan saved"),
    ],
)
def test_a_damaged_file_is_removed_with_the_reason(
    files: PrefixFiles,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
    reason: str,
) -> None:
    path = written(files, 1)
    path.write_bytes(change(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "ortolan.runtime"):
        assert read(files, 1) is None
    assert reason in caplog.text
    assert not path.exists()
    written(files, 1)
    assert read(files, 1) is not None


def test_a_file_of_another_block_is_removed_with_the_reason(
    files: PrefixFiles, caplog: pytest.LogCaptureFixture
) -> None:
    other = Snapshot(identity="other", length=16, buffers=STATES.buffers)
    for states, ids, after, reason in (
        (other, IDS, ROOT, "expected states of the bundle and adapter bundle, got other"),
        (STATES, OTHER_IDS, ROOT, "other tokens"),
        (STATES, IDS, key_of(7), "expected tokens after"),
    ):
        files.write([key_of(1)], ids, states, after=after)
        wait(files)
        assert read(files, 1) is None
        assert reason in caplog.text
        assert not files._path(key_of(1)).exists()


def test_the_least_recent_files_and_the_ends_of_chains_are_removed_first(
    files: PrefixFiles, tmp_path: Path
) -> None:
    written(files, 1, 2, 3, 4)
    written(files, 5)
    assert names(tmp_path) == [1, 2, 3, 5]
    files.touch([key_of(1), key_of(2)])
    written(files, 6)
    assert names(tmp_path) == [1, 2, 5, 6]
    assert not files.has(key_of(3))
    written(files, 7, 8)
    assert names(tmp_path) == [1, 6, 7, 8]


def test_other_files_stay_and_leftovers_of_killed_processes_go(
    files: PrefixFiles, tmp_path: Path
) -> None:
    (tmp_path / "notes.block").write_bytes(bytes(10 * SIZE))
    left = tmp_path / f".{key_of(9).hex()}.block.{'0' * 16}"
    left.write_bytes(bytes(2 * SIZE))
    os.utime(left, (0, 0))
    written(files, 1, 2, 3)
    assert (tmp_path / "notes.block").exists()
    assert not left.exists()
    assert read(files, 3) is not None


def test_a_block_larger_than_the_limit_is_not_written(tmp_path: Path) -> None:
    files = PrefixFiles(tmp_path, most_bytes=SIZE - 1)
    files.write([key_of(1)], IDS, STATES, after=ROOT)
    files.close()
    assert not list(tmp_path.iterdir())


def test_blocks_beyond_the_pending_limit_are_written_when_next_used(
    files: PrefixFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_files, "PENDING_BYTES", SIZE)
    released = threading.Event()
    files._writer.submit(released.wait)
    for number in (1, 2):
        files.write([key_of(number)], IDS, STATES, after=ROOT)
    released.set()
    wait(files)
    assert (files.has(key_of(1)), files.has(key_of(2))) == (True, False)
    written(files, 2)
    assert read(files, 2) is not None


def test_a_full_disk_only_causes_a_warning(
    files: PrefixFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        written(files, 1)
    assert "was not written: no space left" in caplog.text
    assert not files.has(key_of(1))
    written(files, 1)
    assert read(files, 1) is not None


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cache_folder"):
        PrefixFiles(tmp_path / place, most_bytes=SIZE)


_WORK = """
import sys
from pathlib import Path
from tests.runtime.engine.test_prefix_files import PrefixFiles, SIZE, read, written
files = PrefixFiles(Path(sys.argv[1]), most_bytes=4 * SIZE)
for number in range(150):
    written(files, *(1 + (number + n) % 9 for n in range(3)))
    for wanted in range(1, 10):
        read(files, wanted)
files.close()
"""


def test_two_processes_at_once_read_no_damaged_file_and_stay_near_the_limit(
    tmp_path: Path,
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "src", REPOSITORY))),
    }
    command = [sys.executable, "-W", "error", "-c", _WORK, str(tmp_path)]
    processes = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert b"removed" not in errors
    files = PrefixFiles(tmp_path, most_bytes=4 * SIZE)
    written(files, 20)
    files.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * SIZE

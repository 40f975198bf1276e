import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ortolan.runtime.machine.memory import available_memory, peak_memory, reset_peak

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@linux
def test_the_peak_holds_what_is_gone_until_it_is_forgotten() -> None:
    np.ones(64 * MIB, np.uint8)
    before = peak_memory()
    assert before is not None
    if not reset_peak():
        pytest.skip("this system does not let go of the peak")
    after = peak_memory()
    assert after is not None
    assert before - after > 48 * MIB


@linux
def test_this_machine_has_memory_left() -> None:
    left = available_memory()
    assert left is not None
    assert left > 16 * MIB


def test_without_linux_nothing_is_known(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4096 kB"}


def test_without_groups_the_system_says(tmp_path: Path) -> None:
    assert available_memory(write(tmp_path, MEMINFO)) == 4 * MIB


def test_files_that_were_read_do_not_count_as_used(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/a"
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/a",
            f"{group}/memory.max": f"{3 * MIB}",
            f"{group}/memory.current": f"{2 * MIB}",
            f"{group}/memory.stat": f"anon 1\ninactive_file {MIB}\nactive_file 7",
        },
    )
    assert available_memory(root) == 2 * MIB


@pytest.mark.parametrize(("outer", "left"), [("max", MIB), (f"{2 * MIB}", MIB // 2)])
def test_the_tightest_group_holds(tmp_path: Path, outer: str, left: int) -> None:
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/memory.max": outer,
            "sys/fs/cgroup/a/memory.current": f"{2 * MIB - MIB // 2}",
            "sys/fs/cgroup/a/b/memory.max": f"{2 * MIB}",
            "sys/fs/cgroup/a/b/memory.current": f"{MIB}",
        },
    )
    assert available_memory(root) == left


def test_groups_of_version_1_hold_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker"
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "4:memory:/docker\n3:cpu,cpuacct:/docker",
            f"{group}/memory.limit_in_bytes": f"{MIB}",
            f"{group}/memory.usage_in_bytes": f"{2 * MIB}",
        },
    )
    assert available_memory(root) == 0


@linux
def test_large_memory_is_given_back_when_it_is_freed() -> None:
    script = """
import ctypes
from ortolan.runtime.machine.memory import LARGE_BYTES, return_large_memory
from ortolan.runtime.machine.memory import reset_peak, peak_memory

def used():
    reset_peak()
    return peak_memory()

return_large_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 4 * LARGE_BYTES
before = used()
for _ in range(3):  # glibc learns from the first
    kept = [libc.malloc(size) for _ in range(8)]
    for each in kept:
        ctypes.memset(each, 1, size)
    for each in kept[:-1]:
        libc.free(each)
    print(used() - before < 3 * 2 * size)
"""
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 3

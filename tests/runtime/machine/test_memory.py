"""Memory and features of the machine."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.machine.fake_root import write_root

from ortolan.runtime.machine.memory import available_memory, peak_memory, used_memory
from ortolan.runtime.machine.processor import processor_features

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


@linux
def test_the_peak_includes_freed_memory() -> None:
    np.ones(64 * MIB, np.uint8)
    peak, used = peak_memory(), used_memory()
    assert peak is not None
    assert used is not None
    assert peak - used > 32 * MIB


@linux
def test_this_machine_has_memory_left() -> None:
    left = available_memory()
    assert left is not None
    assert left > 16 * MIB


V2, V1 = "sys/fs/cgroup/a", "sys/fs/cgroup/memory/docker/memory"


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        ("", {}, 4 * MIB),
        (  # cached files count as used, but can be dropped
            "0::/a",
            {
                f"{V2}/memory.max": f"{3 * MIB}",
                f"{V2}/memory.current": f"{2 * MIB}",
                f"{V2}/memory.stat": f"anon 1\ninactive_file {MIB}\nactive_file 7",
            },
            2 * MIB,
        ),
        *(
            (
                "0::/a/b",
                {
                    f"{V2}/memory.max": outer,
                    f"{V2}/memory.current": f"{2 * MIB - MIB // 2}",
                    f"{V2}/b/memory.max": f"{2 * MIB}",
                    f"{V2}/b/memory.current": f"{MIB}",
                },
                left,
            )
            for outer, left in (("max", MIB), (f"{2 * MIB}", MIB // 2))
        ),
        (
            "4:memory:/docker\n3:cpu,cpuacct:/docker",
            {f"{V1}.limit_in_bytes": f"{MIB}", f"{V1}.usage_in_bytes": f"{2 * MIB}"},
            0,
        ),
    ],
    ids=["system", "cached files", "inner group", "outer group", "version 1"],
)
def test_the_tightest_of_system_and_groups_holds(
    tmp_path: Path, cgroup: str, files: dict[str, str], left: int
) -> None:
    assert available_memory(tmp_path) is None
    system = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4096 kB"}
    root = write_root(tmp_path, system | files | {"proc/self/cgroup": cgroup})
    assert available_memory(root) == left


@linux
def test_large_blocks_are_returned_when_freed() -> None:
    script = """
import ctypes
from ortolan.runtime.machine.memory import LARGE_BYTES, return_large_memory, used_memory

return_large_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 4 * LARGE_BYTES
before = used_memory()
for _ in range(3):  # glibc learns from the first
    blocks = [libc.malloc(size) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)
    print(used_memory() - before < 3 * 2 * size)
"""
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 3


# --- the processor ----------------------------------------------------------------------------

X86 = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512_vnni smap\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm crc32\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86, ("avx2", "avx512_vnni", "fma")),
        (X86.replace(" avx512_vnni", "").replace(" smap", " erms"), ("avx2", "fma")),
        (ARM, ("asimd", "asimddp", "i8mm")),
        (ARM + "\n" + ARM.replace(" i8mm", " sve"), ("asimd", "asimddp")),
        ("", (platform.processor(),)),
        ("isa\t: rv64imafdc\n", (platform.processor(),)),
    ],
)
def test_instruction_sets_of_all_cores_that_kernels_choose_by_are_listed(
    tmp_path: Path, cpuinfo: str, expected: tuple[str, ...]
) -> None:
    root = write_root(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert processor_features(root) == (platform.machine(), *expected)

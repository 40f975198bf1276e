import os
from pathlib import Path

import pytest
from tests.runtime.machine.fake_root import use_cores, write_root

from ortolan.runtime.machine import bandwidth
from ortolan.runtime.machine.bandwidth import (
    BUFFER_BYTES,
    MIN_BUFFER_BYTES,
    Bandwidth,
    buffer_bytes,
    last_level_cache,
    measure_bandwidth,
    read_bandwidth,
)

MIB = 1 << 20

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")


def add_cache(root: Path, cpu: int, index: int, size: str, cores: str, **files: str) -> None:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    contents = {"level": "3", "type": "Unified", "size": size, "shared_cpu_list": cores} | files
    write_root(root, {f"{folder}/{name}": text for name, text in contents.items()})


# --- the processor's cache --------------------------------------------------------------------

Cache = tuple[int, int, str, str, dict[str, str]]
"""Core, index, size, the cores that share it, and other files."""

L2, L1D, L3I = {"level": "2"}, {"level": "1", "type": "Data"}, {"type": "Instruction"}

CACHES: dict[str, tuple[int, list[Cache], int | None]] = {
    "two cores share a cache": (
        2,
        [(cpu, 3, "32768K", "0-1", {}) for cpu in (0, 1)]
        + [(cpu, 2, "1024K", f"{cpu}", L2) for cpu in (0, 1)],
        32 * MIB,
    ),
    "two groups of cores, and one of others": (
        3,
        [(cpu, 3, "16M", f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}", {}) for cpu in (0, 1, 2, 4)],
        32 * MIB,
    ),
    "no third level": (
        1,
        [(0, 0, "48K", "0", L1D), (0, 2, "1M", "0-3", L2), (0, 3, "8M", "0-3", L3I)],
        MIB,
    ),
    "no cache": (1, [], None),
    **{f"size {size!r}": (1, [(0, 3, size, "0", {})], None) for size in ("", "K", "many", "12")},
}


@linux
@pytest.mark.parametrize("name", CACHES)
def test_the_last_caches_of_the_cores_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cores, caches, expected = CACHES[name]
    use_cores(monkeypatch, *range(cores))
    for cpu, index, size, shared, files in caches:
        add_cache(tmp_path, cpu, index, size, shared, **files)
    assert last_level_cache(tmp_path) == expected


# --- the array that is read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "available", "size"),
    [
        (32 * MIB, None, BUFFER_BYTES),
        (None, None, BUFFER_BYTES),
        (32 * MIB, 1 << 40, BUFFER_BYTES),
        (256 * MIB, 1 << 40, 1024 * MIB),  # four times the cache
        (32 * MIB, 1024 * MIB, 256 * MIB),  # a quarter of the memory
        (32 * MIB, 4 * 64 * MIB, 64 * MIB),  # twice the cache: just enough
        (32 * MIB, 4 * 64 * MIB - 4, None),
        (MIB, 4 * MIN_BUFFER_BYTES, MIN_BUFFER_BYTES),
        (MIB, 4 * MIN_BUFFER_BYTES - 4, None),
    ],
)
def test_the_array_exceeds_the_cache_and_leaves_memory(
    cache: int | None, available: int | None, size: int | None
) -> None:
    assert buffer_bytes(cache, available) == size


# --- one measurement ---------------------------------------------------------------------------


def test_reading_gives_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "SECONDS", 0.0)
    # no memory reads a byte a second, nor a petabyte
    for threads in (1, 3):
        assert 1e6 < read_bandwidth(threads, 4 * MIB) < 1e15


@pytest.mark.parametrize(("available", "size"), [(1024 * MIB, 256 * MIB), (MIB, None)])
def test_a_measurement_records_the_size_of_the_array(
    monkeypatch: pytest.MonkeyPatch, available: int, size: int | None
) -> None:
    calls = []

    def measured(threads: int, size: int) -> float:
        calls.append((threads, size))
        return 2.0

    monkeypatch.setattr(bandwidth, "read_bandwidth", measured)
    monkeypatch.setattr(bandwidth, "available_memory", lambda: available)
    result = measure_bandwidth(4, 8 * MIB)
    if size is None:
        assert (result, calls) == (None, [])
        return
    assert result == Bandwidth(
        bytes_per_second=2.0, threads=4, buffer_bytes=size, wanted_bytes=BUFFER_BYTES
    )
    assert calls == [(4, size)]

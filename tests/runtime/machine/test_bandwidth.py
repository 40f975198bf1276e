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


@linux
def test_a_cache_that_cores_share_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cores(monkeypatch, 0, 1)
    for cpu in (0, 1):
        add_cache(tmp_path, cpu, 2, "1024K", f"{cpu}", level="2")
        add_cache(tmp_path, cpu, 3, "32768K", "0-1")
    assert last_level_cache(tmp_path) == 32 * MIB


@linux
def test_caches_of_several_groups_of_cores_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cores(monkeypatch, 0, 1, 2)
    add_cache(tmp_path, 0, 3, "16M", "0-1")
    add_cache(tmp_path, 1, 3, "16M", "0-1")
    add_cache(tmp_path, 2, 3, "16M", "2-3")
    add_cache(tmp_path, 4, 3, "16M", "4-5")  # not for this process
    assert last_level_cache(tmp_path) == 32 * MIB


@linux
def test_without_a_third_level_the_second_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cores(monkeypatch, 0)
    add_cache(tmp_path, 0, 0, "48K", "0", level="1", type="Data")
    add_cache(tmp_path, 0, 2, "1M", "0-3", level="2")
    add_cache(tmp_path, 0, 3, "8M", "0-3", level="3", type="Instruction")
    assert last_level_cache(tmp_path) == MIB


@linux
@pytest.mark.parametrize("size", ["", "K", "many", "12"])
def test_a_cache_of_unknown_size_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    use_cores(monkeypatch, 0)
    assert last_level_cache(tmp_path) is None
    add_cache(tmp_path, 0, 3, size, "0")
    assert last_level_cache(tmp_path) is None


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


@pytest.mark.parametrize("threads", [1, 3])
def test_reading_gives_a_speed(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(bandwidth, "SECONDS", 0.0)
    # no memory reads a byte a second, nor a petabyte
    assert 1e6 < read_bandwidth(threads, 4 * MIB) < 1e15


# --- one measurement ---------------------------------------------------------------------------


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

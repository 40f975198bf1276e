"""How fast this machine reads memory, and how much of it the processor keeps close.

Generating a token reads every weight once, so the bandwidth bounds the tokens per second. It is
measured by taking the maximum of a large array of int32, a part per thread: of numpy's operations
that let other threads run meanwhile, the one that came nearest to a loop of 512-bit loads in C
(with one thread as fast; with two, as fast as all the others).
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.machine.control_groups import read_small
from ortolan.runtime.machine.memory import available_memory

__all__ = [
    "Bandwidth",
    "buffer_bytes",
    "last_level_cache",
    "measure_bandwidth",
    "read_bandwidth",
]

BUFFER_BYTES = 512 << 20
"""Far more than most processors keep; filled within 0.2 s."""

CACHES = 4
"""The buffer is that many times the last-level cache: at most a quarter of a pass comes from it."""

MIN_BUFFER_BYTES = 32 << 20
"""A pass over less is over before the threads have started."""

SHARE_OF_MEMORY = 0.25
"""Most of the available memory that the buffer may take."""

PASSES, SECONDS = 5, 0.25
"""Fewest passes, and how long to repeat them. The fastest counts."""

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        bytes_per_second: of the fastest pass.
        buffer_bytes: size of the array that was read.
        wanted_bytes: what it would have been with more memory.
    """

    bytes_per_second: float
    threads: int
    buffer_bytes: int
    wanted_bytes: int


def measure_bandwidth(threads: int, cache_bytes: int | None) -> Bandwidth | None:
    """Measure once, within about half a second; `None` where memory is too short for it."""
    size = buffer_bytes(cache_bytes, available_memory())
    if size is None:
        return None
    return Bandwidth(
        bytes_per_second=read_bandwidth(threads, size),
        threads=threads,
        buffer_bytes=size,
        wanted_bytes=_wanted_bytes(cache_bytes),
    )


def last_level_cache(root: Path = Path("/")) -> int | None:
    """Bytes of the largest caches of the cores that this process may use, `None` if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    sizes: dict[tuple[int, str], int] = {}
    for number in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{number}/cache"
        for cache in sorted(folder.glob("index*")):
            level, size = read_small(cache / "level"), _bytes(read_small(cache / "size"))
            if level.isdigit() and size and read_small(cache / "type") != "Instruction":
                # cores that share a cache name the same cores
                cores = read_small(cache / "shared_cpu_list") or f"cpu{number}"
                sizes[int(level), cores] = size
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None


def buffer_bytes(cache_bytes: int | None, available_bytes: int | None) -> int | None:
    """Choose the size of the array to read.

    Returns:
        `None` when an array that fits would say nothing: the cache would keep half of it.
    """
    wanted = _wanted_bytes(cache_bytes)
    if available_bytes is None:
        return wanted
    size = min(wanted, int(available_bytes * SHARE_OF_MEMORY))
    return size if size >= max(MIN_BUFFER_BYTES, 2 * (cache_bytes or 0)) else None


def read_bandwidth(threads: int, size: int) -> float:
    """Measure how fast that many threads together read an array of `size` bytes.

    Returns:
        Bytes per second of the fastest pass. The array is freed.
    """
    # numpy asks for huge pages, where the system has them
    parts = np.array_split(np.empty(size // 4, np.int32), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        # written by the thread that reads it: memory is near the core that touches it first
        list(pool.map(_touch, parts))
        began, passes = time.perf_counter(), 0
        while passes < PASSES or time.perf_counter() - began < SECONDS:
            started = time.perf_counter()
            list(pool.map(_read, parts))
            best = max(best, size / (time.perf_counter() - started))
            passes += 1
    return best


def _wanted_bytes(cache_bytes: int | None) -> int:
    """The size of an array that a cache of this size cannot keep."""
    return max(BUFFER_BYTES, CACHES * (cache_bytes or 0))


def _touch(part: NDArray[np.int32]) -> None:
    part.fill(1)


def _read(part: NDArray[np.int32]) -> int:
    return int(part.max())


def _bytes(text: str) -> int:
    """`32768K` in bytes; 0 for what is not a size."""
    number, unit = text[:-1], text[-1:]
    return int(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else 0

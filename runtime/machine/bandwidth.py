"""Memory bandwidth and cache size of this machine.

Generating a token reads every weight once, so the bandwidth bounds tokens per second. It is
measured by taking the maximum of a large int32 array, one part per thread. Of NumPy's operations
that release the GIL, this one comes closest to a loop of 512-bit loads in C.
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
"""Default size of the array: far more than most caches, and filled within 0.2 s."""

CACHES = 4
"""Size of the array in last-level caches, so that at most a quarter of a pass hits the cache."""

MIN_BUFFER_BYTES = 32 << 20
"""Smallest useful array: a shorter pass ends before the threads have started."""

SHARE_OF_MEMORY = 0.25
"""Largest share of the available memory that the array may take."""

PASSES, SECONDS = 5, 0.25
"""Minimum number of passes, and how long to repeat them; the fastest counts."""

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """A measured bandwidth.

    Attributes:
        bytes_per_second: speed of the fastest pass.
        threads: number of threads.
        buffer_bytes: size of the array.
        wanted_bytes: its size if memory were not short.
    """

    bytes_per_second: float
    threads: int
    buffer_bytes: int
    wanted_bytes: int


def measure_bandwidth(threads: int, cache_bytes: int | None) -> Bandwidth | None:
    """Measure once, in about half a second; `None` if memory is too short."""
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
    """Return the bytes of last-level cache that this process may use; `None` if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    sizes: dict[tuple[int, str], int] = {}
    for number in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{number}/cache"
        for cache in sorted(folder.glob("index*")):
            level, size = read_small(cache / "level"), _bytes(read_small(cache / "size"))
            if level.isdigit() and size and read_small(cache / "type") != "Instruction":
                # cores that share a cache list the same cores
                cores = read_small(cache / "shared_cpu_list") or f"cpu{number}"
                sizes[int(level), cores] = size
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None


def buffer_bytes(cache_bytes: int | None, available_bytes: int | None) -> int | None:
    """Choose the size of the array; `None` if half of any that fits would stay in the cache."""
    wanted = _wanted_bytes(cache_bytes)
    if available_bytes is None:
        return wanted
    size = min(wanted, int(available_bytes * SHARE_OF_MEMORY))
    return size if size >= max(MIN_BUFFER_BYTES, 2 * (cache_bytes or 0)) else None


def read_bandwidth(threads: int, size: int) -> float:
    """Measure how fast `threads` threads read an array of `size` bytes, in bytes per second."""
    # NumPy asks for huge pages
    parts = np.array_split(np.empty(size // 4, np.int32), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        # written by the threads that read it: memory is close to the core that touches it first
        list(pool.map(_touch, parts))
        began, passes = time.perf_counter(), 0
        while passes < PASSES or time.perf_counter() - began < SECONDS:
            started = time.perf_counter()
            list(pool.map(_read, parts))
            best = max(best, size / (time.perf_counter() - started))
            passes += 1
    return best


def _wanted_bytes(cache_bytes: int | None) -> int:
    """The size of an array that this cache cannot hold."""
    return max(BUFFER_BYTES, CACHES * (cache_bytes or 0))


def _touch(part: NDArray[np.int32]) -> None:
    part.fill(1)


def _read(part: NDArray[np.int32]) -> int:
    return int(part.max())


def _bytes(text: str) -> int:
    """Parse a size such as `32768K`; 0 if it is not a size."""
    number, unit = text[:-1], text[-1:]
    return int(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else 0

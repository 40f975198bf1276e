"""Memory of this process: peak use, available memory, and returning memory to the system."""

import ctypes
import re
import sys
from pathlib import Path

from ortolan.runtime.machine.control_groups import group_folders, read_small

LARGE_BYTES = 2 << 20
"""Size, in bytes, from which freed memory is returned at once; see `return_large_memory`."""

LARGEST_BYTES = 32 << 20
"""glibc's largest size of blocks that it can be told to keep."""

_STATUS, _MEMINFO = Path("/proc/self/status"), "proc/meminfo"

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def peak_memory() -> int | None:
    """Return the peak resident memory of this process, in bytes; `None` on Windows.

    Mapped files that were read count too, like weights.
    """
    if (peak := _field(_STATUS, "VmHWM")) is not None:
        return peak
    try:
        import resource
    except ImportError:
        return None
    # not on Linux, where it starts at the peak of the parent process
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def used_memory() -> int | None:
    """Return the resident memory of this process, in bytes; `None` elsewhere than on Linux."""
    return _field(_STATUS, "VmRSS")


def return_free_memory() -> None:
    """Return freed memory that glibc would keep, after freeing large tensors."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def return_large_memory(size: int = LARGE_BYTES) -> None:
    """From now on, return blocks of this size when they are freed; glibc would learn to keep them.

    At most `LARGEST_BYTES`.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, size)
        # setting the first stops glibc from raising the second as blocks are freed
        libc.mallopt(_TRIM_THRESHOLD, 16 * size)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can take before the system swaps or kills it.

    `None` outside Linux.
    """
    sizes = [_field(root / _MEMINFO, "MemAvailable")]
    for folder in group_folders("memory", root):
        # files of version 2, then of version 1
        sizes.append(_left(folder, limit="memory.max", usage="memory.current"))
        sizes.append(_left(folder, limit="memory.limit_in_bytes", usage="memory.usage_in_bytes"))
    return min((size for size in sizes if size is not None), default=None)


def free_swap(root: Path = Path("/")) -> int:
    """Return the free swap space in bytes; 0 outside Linux."""
    return _field(root / _MEMINFO, "SwapFree") or 0


def _field(path: Path, field: str) -> int | None:
    """A field of a file of `name: 1234 kB`, in bytes."""
    for line in read_small(path).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _left(folder: Path, *, limit: str, usage: str) -> int | None:
    most, used = read_small(folder / limit), read_small(folder / usage)
    if not most.isdigit() or not used.isdigit():
        return None
    # cached files count as used, but are dropped when memory is needed
    cached = re.search(r"^inactive_file (\d+)$", read_small(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(most) - int(used) + (int(cached[1]) if cached else 0))

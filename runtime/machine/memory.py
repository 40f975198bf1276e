"""Memory of this process: peak use, available memory, and returning memory to the system."""

import ctypes
import sys
from pathlib import Path

from ortolan.runtime.machine.control_groups import group_folders, read_small

LARGE_BYTES = 2 << 20
"""Size, in bytes, from which freed memory is returned at once; see `return_large_memory`."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def peak_memory() -> int | None:
    """Return the peak resident memory of this process, in bytes; `None` on Windows.

    Mapped files that were read count too, like weights.
    """
    if (peak := _from_status("VmHWM")) is not None:
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
    return _from_status("VmRSS")


def return_free_memory() -> None:
    """Return freed memory that glibc would keep, after freeing large tensors."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def return_large_memory() -> None:
    """From now on, return large blocks when they are freed; glibc would learn to keep them."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        # setting the first stops glibc from raising the second as blocks are freed
        libc.mallopt(_TRIM_THRESHOLD, 16 * LARGE_BYTES)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can take before the system swaps or kills it.

    `None` outside Linux.
    """
    sizes = (_from_meminfo(root, "MemAvailable"), *_from_groups(root))
    return min((size for size in sizes if size is not None), default=None)


def free_swap(root: Path = Path("/")) -> int:
    """Return the free swap space in bytes; 0 outside Linux."""
    return _from_meminfo(root, "SwapFree") or 0


def _from_status(field: str) -> int | None:
    """A field of this process's status, in bytes."""
    for line in read_small(Path("/proc/self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _from_meminfo(root: Path, field: str) -> int | None:
    for line in read_small(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _from_groups(root: Path) -> list[int | None]:
    """The memory left in each group, by the files of version 2, then of version 1."""
    return [
        _left(folder, limit=limit, usage=usage)
        for folder in group_folders("memory", root)
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
    ]


def _left(folder: Path, *, limit: str, usage: str) -> int | None:
    most, used = read_small(folder / limit), read_small(folder / usage)
    if not most.isdigit() or not used.isdigit():
        return None
    fields = dict(
        line.split(" ", 1)
        for line in read_small(folder / "memory.stat").splitlines()
        if " " in line
    )
    # cached files count as used, but are dropped when memory is needed
    reclaimable = int(fields.get("inactive_file", "0"))
    return max(0, int(most) - int(used) + reclaimable)

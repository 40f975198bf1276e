"""Memory of this process: its peak, how much more it may take, and giving it back."""

import ctypes
import sys
from pathlib import Path

from ortolan.runtime.machine.control_groups import group_folders, read_small

__all__ = [
    "available_memory",
    "free_swap",
    "peak_memory",
    "reset_peak",
    "return_free_memory",
    "return_large_memory",
]

LARGE_BYTES = 2 << 20
"""Of memory that is worth asking the system for each time."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)

_RESET_PEAK = "5"


def peak_memory() -> int | None:
    """The largest resident memory of this process so far, in bytes; `None` on Windows.

    Files that are mapped and read count, as weights are.
    """
    for line in read_small(Path("/proc/self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    try:
        import resource
    except ImportError:
        return None
    # Not used on Linux: there it starts with the peak of the process that started this one.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def return_free_memory() -> None:
    """Give back what was freed, where glibc would keep it for later: after large tensors."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def return_large_memory() -> None:
    """From now on, give back what is large when it is freed, where glibc learns to keep it."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        # Set by hand, the first stops the second from growing with what is freed.
        libc.mallopt(_TRIM_THRESHOLD, 16 * LARGE_BYTES)


def reset_peak() -> bool:
    """Let the peak start again from what is in use now; `False` where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take without making the system swap or end it.

    Returns:
        `None` outside Linux.
    """
    found = [_from_meminfo(root, "MemAvailable"), *_from_groups(root)]
    known = [size for size in found if size is not None]
    return min(known, default=None)


def free_swap(root: Path = Path("/")) -> int:
    """Bytes that the system can still swap out; 0 outside Linux."""
    return _from_meminfo(root, "SwapFree") or 0


def _from_meminfo(root: Path, field: str) -> int | None:
    for line in read_small(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def _from_groups(root: Path) -> list[int | None]:
    """What is left of each group's limit; version 2's files, then version 1's."""
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
    # Files that were read count as used, and give way when memory is needed.
    reclaimable = int(fields.get("inactive_file", "0"))
    return max(0, int(most) - int(used) + reclaimable)

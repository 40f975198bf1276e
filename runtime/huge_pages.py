"""Huge pages for weights, where Linux offers them.

A decoding step reads every weight once. With pages of 4 KiB a part of that time goes into looking
up where they are: on the 135m shape in fp32, steps were 11 to 13 % shorter with pages of 2 MiB.
onnxruntime allocates its packed weights with malloc, which asks for no huge pages, so they are
collapsed afterwards: in the background, since that takes about 2.5 s per GB.

Knows memory mappings of this process. Does not know what lies in them. Elsewhere than on Linux,
before Linux 6.1, or where the administrator chose `never`, this does nothing.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

__all__ = ["HUGE_PAGE", "anonymous_memory", "collapse", "collapse_later", "huge_page_mode"]

HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB."""

_MADV_COLLAPSE = 25
_RESIDENT = 0.95  # a mapping with more holes than this would grow
_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/smaps")
_LOWEST_PRIORITY = 19


def huge_page_mode() -> str | None:
    """What the administrator chose: `always`, `madvise` or `never`; `None` where there is none."""
    try:
        modes = _MODE.read_text(encoding="ascii")
    except OSError:
        return None
    return modes.partition("[")[2].partition("]")[0] or None


def anonymous_memory() -> list[range]:
    """Addresses of private writable memory without a file, where almost all of it is in use."""
    try:
        mappings = _MAPPINGS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: list[range] = []
    candidate = range(0)
    for line in mappings.splitlines():
        first, *rest = line.split()
        if first == "Rss:":
            if len(candidate) > 0 and int(rest[0]) * 1024 >= _RESIDENT * len(candidate):
                found.append(candidate)
        elif not first.endswith(":"):
            permissions, _, _, inode, *name = rest
            anonymous = inode == "0" and (not name or name[0] == "[heap]")
            start, _, stop = first.partition("-")
            writable = permissions.startswith("rw") and permissions.endswith("p")
            candidate = range(int(start, 16), int(stop, 16)) if anonymous and writable else range(0)
    return found


def collapse(memory: Iterable[range]) -> None:
    """Put memory into huge pages, as far as whole ones fit and are free. Its content stays."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for addresses in memory:
        start = -(-addresses.start // HUGE_PAGE) * HUGE_PAGE
        stop = addresses.stop // HUGE_PAGE * HUGE_PAGE
        if start < stop:
            # A refusal, for want of free huge pages or of Linux 6.1, leaves the memory as it was.
            madvise(start, stop - start, _MADV_COLLAPSE)


def collapse_later(known: Iterable[range]) -> threading.Thread | None:
    """Put memory that came after `known` into huge pages, in a thread that yields to all others.

    Args:
        known: `anonymous_memory()` before the weights were allocated.

    Returns:
        The thread, or `None` where there is nothing to do.
    """
    if sys.platform != "linux" or huge_page_mode() not in ("always", "madvise"):
        return None
    new = _without(anonymous_memory(), known)
    if not any(len(addresses) >= HUGE_PAGE for addresses in new):
        return None

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        collapse(new)

    # A daemon: the process need not wait for it, and freed memory is refused without harm.
    thread = threading.Thread(target=work, name="ortolan-huge-pages", daemon=True)
    thread.start()
    return thread


def _without(memory: Iterable[range], known: Iterable[range]) -> list[range]:
    """The parts of `memory` that are in none of `known`."""
    left = list(memory)
    for old in known:
        parts = []
        for new in left:
            before = range(new.start, min(new.stop, old.start))
            after = range(max(new.start, old.stop), new.stop)
            parts += [part for part in (before, after) if len(part) > 0]
        left = parts
    return left

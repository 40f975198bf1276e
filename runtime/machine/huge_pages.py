"""Huge pages for weights, where Linux offers them.

A decoding step reads every weight once. With pages of 4 KiB a part of that time goes into looking
up where they are: on the 1b shape in int4, steps were 7 to 15 % shorter with pages of 2 MiB
(docs/adr/0011).
onnxruntime allocates its packed weights with malloc, which asks for no huge pages, so they are
collapsed afterwards: in the background, since that takes about 2.5 s per GB.

Elsewhere than on Linux, before Linux 6.1, or where the administrator chose `never`, this does
nothing.
"""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

__all__ = ["HUGE_PAGE", "collapse", "collapse_later", "huge_page_mode", "pages_in_use"]

HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB."""

_MADV_COLLAPSE = 25
_IN_USE = 0.95  # a huge page with more holes than this would take more memory
_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/maps")
_LOWEST_PRIORITY = 19


def huge_page_mode() -> str | None:
    """What the administrator chose: `always`, `madvise` or `never`; `None` where there is none."""
    try:
        modes = _MODE.read_text(encoding="ascii")
    except OSError:
        return None
    return modes.partition("[")[2].partition("]")[0] or None


def pages_in_use() -> set[int]:
    """Addresses where a huge page would hold private memory without a file, almost all in use.

    The kernel joins neighbouring mappings, so weights may share one with a stack or a reserve that
    was never touched: each huge page is looked at, not a mapping as a whole.
    """
    try:
        mappings = _MAPPINGS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    found: set[int] = set()
    for line in mappings.splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        anonymous = inode == "0" and (not name or name[0] == "[heap]")
        if not (anonymous and permissions.startswith("rw") and permissions.endswith("p")):
            continue
        start, _, stop = addresses.partition("-")
        pages = range(-(-int(start, 16) // HUGE_PAGE), int(stop, 16) // HUGE_PAGE)
        resident = np.zeros((len(pages), HUGE_PAGE // mmap.PAGESIZE), np.uint8)
        # A refusal says that a part is gone since it was listed: what it left at 0 is left alone.
        if pages:
            mincore(pages.start * HUGE_PAGE, len(pages) * HUGE_PAGE, resident.ctypes.data)
        in_use = np.mean(resident & 1, axis=1) >= _IN_USE
        found.update(pages[index] * HUGE_PAGE for index in np.flatnonzero(in_use).tolist())
    return found


def collapse(pages: Iterable[int]) -> None:
    """Make huge pages at these addresses, as far as some are free. The content stays."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for page in pages:
        # A refusal, for want of free huge pages or of Linux 6.1, leaves the memory as it was.
        madvise(page, HUGE_PAGE, _MADV_COLLAPSE)


def collapse_later(known: set[int]) -> threading.Thread | None:
    """Put memory that came after `known`, of `pages_in_use`, into huge pages.

    A thread does it that yields to all others.


    Returns:
        The thread, or `None` where there is nothing to do.
    """
    if sys.platform != "linux" or huge_page_mode() not in ("always", "madvise"):
        return None
    new = pages_in_use() - known
    if not new:
        return None

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        collapse(sorted(new))

    # A daemon: the process need not wait for it, and freed memory is refused without harm.
    thread = threading.Thread(target=work, name="ortolan-huge-pages", daemon=True)
    thread.start()
    return thread

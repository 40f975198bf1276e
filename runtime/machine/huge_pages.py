"""Huge pages for weights, on Linux.

A decode step reads every weight once, and with 4 KiB pages part of that time goes into address
translation: with 2 MiB pages, steps of a 1B model in int4 were 7 to 15 % shorter (docs/adr/0011).
onnxruntime allocates packed weights with malloc, which asks for no huge pages, so their pages are
collapsed afterwards, in the background, since that takes about 2.5 s per GB.

Does nothing on other systems, before Linux 6.1, or if the administrator chose `never`.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ortolan.runtime.machine.control_groups import read_small

HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86-64, and on arm64 with 4 KiB pages."""

_MADV_COLLAPSE = 25
_IN_USE = 0.95  # a huge page with more holes than this would take more memory
_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/maps")
_LOWEST_PRIORITY = 19


def is_allowed() -> bool:
    """Whether the system lets this process use huge pages."""
    modes = read_small(_MODES)  # such as `always [madvise] never`
    return "[always]" in modes or "[madvise]" in modes


def pages_in_use() -> set[int]:
    """Return the addresses of huge pages whose anonymous private memory is almost all in use.

    The kernel joins adjacent mappings, so weights may share one with a stack or a reserve that was
    never touched. So each page is examined, not the mapping as a whole.
    """
    try:
        mappings = _MAPPINGS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    addresses_in_use: set[int] = set()
    for line in mappings.splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        anonymous = inode == "0" and (not name or name[0] == "[heap]")
        if not (anonymous and permissions.startswith("rw") and permissions.endswith("p")):
            continue
        start, _, stop = addresses.partition("-")
        pages = range(-(-int(start, 16) // HUGE_PAGE), int(stop, 16) // HUGE_PAGE)
        resident = np.zeros((len(pages), HUGE_PAGE // mmap.PAGESIZE), np.uint8)
        # on failure part of the mapping is gone since it was listed, and counts as unused
        if pages:
            mincore(pages.start * HUGE_PAGE, len(pages) * HUGE_PAGE, resident.ctypes.data)
        in_use = np.mean(resident & 1, axis=1) >= _IN_USE
        addresses_in_use.update(pages[i] * HUGE_PAGE for i in np.flatnonzero(in_use).tolist())
    return addresses_in_use


def collapse(pages: Iterable[int]) -> None:
    """Turn the memory at these addresses into huge pages, while some are free; contents stay."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for page in pages:
        # without free huge pages or Linux 6.1 this fails and changes nothing
        madvise(page, HUGE_PAGE, _MADV_COLLAPSE)


def collapse_later(before: set[int]) -> threading.Thread | None:
    """Collapse the pages that came into use since `before`, in a thread of lowest priority."""
    if not is_allowed():
        return None
    new = pages_in_use() - before
    if not new:
        return None

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        collapse(sorted(new))

    # a daemon: the process need not wait for it, and collapsing freed memory does no harm
    thread = threading.Thread(target=work, name="ortolan-huge-pages", daemon=True)
    thread.start()
    return thread

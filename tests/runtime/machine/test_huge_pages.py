import gc
import mmap
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.machine import huge_pages
from ortolan.runtime.machine.huge_pages import HUGE_PAGE, collapse, collapse_later, pages_in_use

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def mapped(pages: int) -> NDArray[np.int64]:
    """A separate mapping that was never touched."""
    memory = mmap.mmap(-1, pages * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.int64)


def resident(pages: int) -> NDArray[np.int64]:
    values = mapped(pages)
    values[:] = np.arange(values.size)
    return values


def huge_pages_of(values: NDArray[np.int64]) -> set[int]:
    """Addresses of the huge pages within an array."""
    start, stop = values.ctypes.data, values.ctypes.data + values.nbytes
    return set(range(-(-start // HUGE_PAGE) * HUGE_PAGE, stop - HUGE_PAGE + 1, HUGE_PAGE))


def in_huge_pages() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("AnonHugePages:"))
    return int(line.split()[1]) * 1024


@linux
def test_memory_in_use_is_found_next_to_untouched_memory() -> None:
    # as where the kernel put weights against a thread's stack and made one mapping of both
    used, unused = np.split(mapped(16), 2)
    used[:] = 1
    in_use = pages_in_use()
    assert huge_pages_of(used) <= in_use
    assert not huge_pages_of(unused) & in_use


@linux
def test_collapsing_keeps_the_content() -> None:
    values = resident(8)
    before = in_huge_pages()
    mine = huge_pages_of(values)
    collapse([page for page in pages_in_use() if page in mine])
    assert (values == np.arange(values.size)).all()
    if huge_pages.is_allowed() and kernel_collapses():
        assert in_huge_pages() - before >= 4 * HUGE_PAGE


def kernel_collapses() -> bool:
    with open("/proc/sys/kernel/osrelease", encoding="ascii") as file:
        major, minor = file.read().split("-")[0].split(".")[:2]
    return (int(major), int(minor)) >= (6, 1)


@linux
def test_collapsing_freed_memory_does_no_harm() -> None:
    values = resident(4)
    pages = huge_pages_of(values)
    del values
    collapse(pages)


@linux
def test_only_newer_memory_is_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "is_allowed", lambda: True)
    collapsed: set[int] = set()
    monkeypatch.setattr(huge_pages, "collapse", collapsed.update)
    gc.collect()  # what other tests left could be freed in between, and its place taken
    old = resident(4)
    before = pages_in_use()
    new = resident(4)
    thread = collapse_later(before)
    assert thread is not None
    thread.join()
    assert huge_pages_of(new) <= collapsed
    assert not huge_pages_of(old) & collapsed

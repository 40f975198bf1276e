import mmap
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime import huge_pages
from ortolan.runtime.huge_pages import HUGE_PAGE, anonymous_memory, collapse, collapse_later

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident(pages: int) -> tuple[mmap.mmap, NDArray[np.int64], range]:
    memory = mmap.mmap(-1, pages * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = np.frombuffer(memory, np.int64)
    values[:] = np.arange(values.size)
    start = values.ctypes.data
    return memory, values, range(start, start + values.nbytes)


def covered(addresses: range, memory: list[range]) -> int:
    parts = [range(max(r.start, addresses.start), min(r.stop, addresses.stop)) for r in memory]
    return sum(len(part) for part in parts)


def in_huge_pages() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("AnonHugePages:"))
    return int(line.split()[1]) * 1024


@linux
def test_memory_in_use_is_found() -> None:
    _memory, _values, addresses = resident(4)
    assert covered(addresses, anonymous_memory()) == len(addresses)


@linux
def test_memory_that_was_never_touched_is_left_alone() -> None:
    # a stack or a reserve: huge pages would make it resident
    memory = mmap.mmap(-1, 64 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert covered(range(start, start + len(memory)), anonymous_memory()) < len(memory)


@linux
def test_collapsing_keeps_the_content() -> None:
    _memory, values, addresses = resident(8)
    before = in_huge_pages()
    collapse([addresses])
    assert (values == np.arange(values.size)).all()
    if huge_pages.huge_page_mode() in ("always", "madvise") and kernel_collapses():
        assert in_huge_pages() - before >= 4 * HUGE_PAGE


def kernel_collapses() -> bool:
    with open("/proc/sys/kernel/osrelease", encoding="ascii") as file:
        major, minor = file.read().split("-")[0].split(".")[:2]
    return (int(major), int(minor)) >= (6, 1)


@linux
def test_freed_memory_is_refused_without_harm() -> None:
    memory, values, addresses = resident(4)
    del values
    memory.close()
    collapse([addresses])


@linux
def test_only_what_came_later_is_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "huge_page_mode", lambda: "madvise")
    asked: list[range] = []
    monkeypatch.setattr(huge_pages, "collapse", asked.extend)
    _old_memory, _old_values, old = resident(4)
    known = anonymous_memory()
    _new_memory, _new_values, new = resident(4)
    thread = collapse_later(known)
    assert thread is not None
    thread.join()
    assert covered(new, asked) == len(new)
    assert covered(old, asked) == 0


@pytest.mark.parametrize("mode", ["never", None])
def test_nothing_happens_where_there_are_no_huge_pages(
    monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    monkeypatch.setattr(huge_pages, "huge_page_mode", lambda: mode)
    _memory, _values, _addresses = resident(4)
    assert collapse_later([]) is None


def test_nothing_happens_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert collapse_later([]) is None

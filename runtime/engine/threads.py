"""How many threads to compute with, and how many physical cores this process may use.

Two threads on the two halves of one core slow each other down when both multiply matrices, and
threads beyond a container's quota are stopped for a part of every period. So the default number
of threads is the number of physical cores, within the affinity mask and the quota.

The steps of a small translator are done before a second thread has woken up: they take one
thread, however many its encoder has, and one is the default for both. On two cores a model of 2.2
million parameters took 1.5 to 1.7 times as long with two threads for its steps, greedily and with
four beams, one by one and in batches; with two for its encoder alone, 0.96 to 1.01 times
(models/numerals in int8, an EPYC, five alternating rounds in one process).

Knows Linux's /sys and the quotas of control groups. Does not know onnxruntime, nor what else runs
on the machine.
"""

import os
from pathlib import Path

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.machine.control_groups import group_folders, read_small

__all__ = [
    "MAX_THREADS",
    "SMALL_BYTES",
    "checked_threads",
    "chosen_threads",
    "is_small_translator",
    "physical_cores",
    "step_threads",
]

MAX_THREADS = 1024
"""Threads of one session; beyond this the number is a mistake."""


SMALL_BYTES = 10_000_000
"""Weights of a small translator at most: as large as the largest measured."""


def chosen_threads(threads: int | None, manifest: Manifest) -> int:
    """How many threads to use for a bundle: the given number, or its default.

    Raises:
        InputError: not a number of threads.
    """
    return 1 if threads is None and is_small_translator(manifest) else checked_threads(threads)


def step_threads(threads: int, manifest: Manifest) -> int:
    """How many of the threads of a bundle the steps of its decoder take."""
    return 1 if is_small_translator(manifest) else threads


def is_small_translator(manifest: Manifest) -> bool:
    """Whether what lies between the steps of an encoder-decoder takes a good part of its time."""
    weights = sum(file.size for file in manifest.files if file.name in manifest.weights)
    return manifest.model_kind.reads_source and weights <= SMALL_BYTES


def checked_threads(threads: int | None) -> int:
    """How many threads to use: the given number, or as many as there are physical cores.

    Raises:
        InputError: not a number of threads.
    """
    if threads is None:
        return physical_cores()
    return checked_count("threads", threads, most=MAX_THREADS)


def physical_cores(root: Path = Path("/")) -> int:
    """Count the physical cores that this process may use, at least 1.

    Outside Linux this is the count of logical cores.

    Args:
        root: folder that holds `sys` and `proc`.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = _distinct_cores(os.sched_getaffinity(0), root)
    quota = _quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _distinct_cores(logical: set[int], root: Path) -> int:
    """Count the physical cores of some logical ones; one whose core is unknown counts."""
    cores: set[str] = set()
    for number in logical:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings = read_small(topology / "core_cpus_list") or read_small(
            topology / "thread_siblings_list"
        )
        cores.add(siblings or f"cpu{number}")
    return max(1, len(cores))


def _quota(root: Path) -> float | None:
    """Cores' worth of time per period that the control groups grant; `None` for no limit."""
    granted: list[float] = []
    for folder in group_folders("cpu", root):
        granted.append(_ratio(*read_small(folder / "cpu.max").split()[:2]))
        granted.append(
            _ratio(
                read_small(folder / "cpu.cfs_quota_us"), read_small(folder / "cpu.cfs_period_us")
            )
        )
    limits = [cores for cores in granted if cores > 0]
    return min(limits, default=None)


def _ratio(quota: str = "", period: str = "") -> float:
    """Quota by period; 0 where a group sets none (`max`, -1 or no file)."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return 0.0
    return int(quota) / int(period)

"""The number of threads to compute with, and of physical cores that this process may use.

Two threads on one core slow each other down when both multiply matrices, and threads beyond a
container's quota are stopped for part of every period. So the default is the number of physical
cores within the affinity mask and the quota.

Decode steps of a small translator end before a second thread wakes up, so they use one thread, and
one is the default for its encoder too. With two threads for its steps a model of 2.2M parameters
took 1.5 to 1.7 times as long; with two for its encoder alone, 0.96 to 1.01 times (models/numerals
in int8 on two EPYC cores, five alternating rounds).
"""

import os
from pathlib import Path

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.machine.control_groups import group_folders, read_small

MAX_THREADS = 1024
"""Upper bound of `threads`; more must be a mistake."""


SMALL_BYTES = 10_000_000
"""Most bytes of weights of a small translator: the largest one measured."""


def chosen_threads(threads: int | None, manifest: Manifest) -> int:
    """Return `threads` or the default for this bundle."""
    if threads is not None:
        return checked_count("threads", threads, most=MAX_THREADS)
    return 1 if is_small_translator(manifest) else physical_cores()


def step_threads(threads: int, manifest: Manifest) -> int:
    """Return the number of threads for decode steps."""
    return 1 if is_small_translator(manifest) else threads


def is_small_translator(manifest: Manifest) -> bool:
    """Whether this is an encoder-decoder with steps too short for a second thread."""
    weights = sum(file.size for file in manifest.files if file.name in manifest.weights)
    return manifest.model_kind.reads_source and weights <= SMALL_BYTES


def physical_cores(root: Path = Path("/")) -> int:
    """Count the physical cores that this process may use, at least 1.

    Outside Linux, count the logical cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = _distinct_cores(os.sched_getaffinity(0), root)
    quota = _quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _distinct_cores(logical: set[int], root: Path) -> int:
    """Count the physical cores behind logical ones; a logical core of unknown place counts."""
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
    quotas: list[float] = []
    for folder in group_folders("cpu", root):
        quotas.append(_ratio(*read_small(folder / "cpu.max").split()[:2]))
        quotas.append(
            _ratio(
                read_small(folder / "cpu.cfs_quota_us"), read_small(folder / "cpu.cfs_period_us")
            )
        )
    return min((cores for cores in quotas if cores > 0), default=None)


def _ratio(quota: str = "", period: str = "") -> float:
    """Quota divided by period; 0 if a group sets none (`max`, -1 or no file)."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return 0.0
    return int(quota) / int(period)

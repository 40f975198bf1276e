"""How many physical cores this process may use.

Two threads on the two halves of one core slow each other down when both multiply matrices, and
threads beyond a container's quota are stopped for a part of every period. So the default number
of threads is the number of physical cores, within the affinity mask and the quota.

Knows Linux's /sys, /proc and control groups. Does not know onnxruntime, nor what else runs on
the machine.
"""

import os
from pathlib import Path

__all__ = ["physical_cores"]


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
    """Count the physical cores behind some logical ones; one whose core is unknown counts."""
    cores: set[str] = set()
    for number in logical:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(siblings or f"cpu{number}")
    return max(1, len(cores))


def _quota(root: Path) -> float | None:
    """Cores' worth of time per period that the control groups grant; `None` for no limit."""
    granted: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, group = [*line.split(":", 2), "", ""][:3]
        if hierarchy == "0":
            folders = _with_parents(root / "sys/fs/cgroup", group)
            granted += [_ratio(*_read(folder / "cpu.max").split()[:2]) for folder in folders]
        elif "cpu" in controllers.split(","):
            folders = _with_parents(root / "sys/fs/cgroup/cpu", group)
            granted += [
                _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
                for folder in folders
            ]
    limits = [cores for cores in granted if cores > 0]
    return min(limits, default=None)


def _with_parents(mount: Path, group: str) -> list[Path]:
    """The folder of a group and of every group around it: the smallest quota holds."""
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _ratio(quota: str = "", period: str = "") -> float:
    """Quota by period; 0 where a group sets none (`max`, -1 or no file)."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return 0.0
    return int(quota) / int(period)


def _read(path: Path) -> str:
    """A small file's text without the newline at its end; empty when it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""

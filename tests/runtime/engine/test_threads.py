import os
from pathlib import Path

import pytest

from ortolan.runtime.engine.threads import physical_cores

LOGICAL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

pytestmark = pytest.mark.skipif(not LOGICAL, reason="Linux only")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(siblings: dict[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{number}/topology/{name}": text
        for number, text in siblings.items()
    }


def use(monkeypatch: pytest.MonkeyPatch, *logical: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(logical))


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_two_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    use(monkeypatch, 0, 1, 2, 3)
    root = write(tmp_path, topology({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, name))
    assert physical_cores(root) == 2


def test_cores_outside_the_affinity_mask_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, 1, 3)
    root = write(tmp_path, topology({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}))
    assert physical_cores(root) == 1


def test_without_a_topology_every_logical_core_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, 0, 1, 5)
    assert physical_cores(tmp_path) == 3


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("200000 100000", 2), ("150000 100000", 1), ("10000 100000", 1), ("max 100000", 6), ("x", 6)],
)
def test_a_quota_of_the_second_kind_of_control_groups_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    use(monkeypatch, *range(6))
    files = {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": quota}
    assert physical_cores(write(tmp_path, files)) == cores


def test_the_quota_of_a_group_around_holds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, *range(6))
    files = {
        "proc/self/cgroup": "0::/a/b",
        "sys/fs/cgroup/a/cpu.max": "300000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
    }
    assert physical_cores(write(tmp_path, files)) == 3


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", 6)])
def test_a_quota_of_the_first_kind_of_control_groups_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    use(monkeypatch, *range(6))
    files = {
        "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/a",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
    }
    assert physical_cores(write(tmp_path, files)) == cores


def test_this_machine_has_from_one_core_to_its_logical_cores() -> None:
    assert 1 <= physical_cores() <= len(LOGICAL)

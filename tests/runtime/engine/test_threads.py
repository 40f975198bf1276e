import os
from pathlib import Path

import pytest
from tests.runtime.machine.fake_root import use_cores, write_root

from ortolan.runtime.engine.threads import physical_cores

LOGICAL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

pytestmark = pytest.mark.skipif(not LOGICAL, reason="Linux only")


def topology(siblings: dict[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{number}/topology/{name}": text
        for number, text in siblings.items()
    }


SIBLINGS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(("logical", "cores"), [((0, 1, 2, 3), 2), ((1, 3), 1)])
def test_threads_of_one_core_count_once_within_the_affinity_mask(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    logical: tuple[int, ...],
    cores: int,
) -> None:
    use_cores(monkeypatch, *logical)
    assert physical_cores(write_root(tmp_path, topology(SIBLINGS, name))) == cores


def test_without_a_topology_every_logical_core_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cores(monkeypatch, 0, 1, 5)
    assert physical_cores(tmp_path) == 3


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu/a/cpu.cfs"


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "150000 100000"}, 1),
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "10000 100000"}, 1),
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "max 100000"}, 6),
        ("0::/a/b", {f"{V2}/a/b/cpu.max": "x"}, 6),
        ("0::/a/b", {f"{V2}/a/cpu.max": "300000 100000", f"{V2}/a/b/cpu.max": "max 100000"}, 3),
        ("2:cpu,cpuacct:/a", {f"{V1}_quota_us": "400000", f"{V1}_period_us": "100000"}, 4),
        ("2:cpu,cpuacct:/a", {f"{V1}_quota_us": "-1", f"{V1}_period_us": "100000"}, 6),
    ],
)
def test_quotas_of_control_groups_and_their_parents_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], cores: int
) -> None:
    use_cores(monkeypatch, *range(6))
    files = files | {"proc/self/cgroup": f"3:memory:/x\n{cgroup}"}
    assert physical_cores(write_root(tmp_path, files)) == cores


def test_this_machine_has_from_one_core_to_its_logical_cores() -> None:
    assert 1 <= physical_cores() <= len(LOGICAL)

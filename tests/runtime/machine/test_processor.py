import platform
from pathlib import Path

import pytest
from tests.runtime.machine.fake_root import write_root

from ortolan.runtime.machine.processor import processor_features

X86 = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512_vnni smap\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm crc32\n"


def root(folder: Path, cpuinfo: str) -> Path:
    return write_root(folder, {"proc/cpuinfo": cpuinfo})


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86, ("avx2", "avx512_vnni", "fma")),
        (ARM, ("asimd", "asimddp", "i8mm")),
        (X86.replace(" avx512_vnni", "").replace(" smap", " erms"), ("avx2", "fma")),
    ],
)
def test_instruction_sets_that_kernels_choose_by_are_listed(
    tmp_path: Path, cpuinfo: str, expected: tuple[str, ...]
) -> None:
    assert processor_features(root(tmp_path, cpuinfo)) == (platform.machine(), *expected)


def test_only_features_of_all_cores_count(tmp_path: Path) -> None:
    cpuinfo = ARM + "\n" + ARM.replace(" i8mm", " sve")
    assert processor_features(root(tmp_path, cpuinfo))[1:] == ("asimd", "asimddp")


@pytest.mark.parametrize("cpuinfo", ["", "isa\t: rv64imafdc\n"])
def test_elsewhere_the_processor_name_is_used(tmp_path: Path, cpuinfo: str) -> None:
    expected = (platform.machine(), platform.processor())
    assert processor_features(root(tmp_path, cpuinfo)) == expected


def test_features_are_repeatable() -> None:
    assert processor_features() == processor_features()

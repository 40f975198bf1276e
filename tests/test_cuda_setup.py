from pathlib import Path

import pytest

from ortolan import cuda_setup
from ortolan.cuda_setup import LIBRARIES, Part, examine, missing_part

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:12:36 UTC 2025"


def parts(
    root: Path, *, wheels: dict[str, str] | None = None, loads: tuple[str, ...] = ()
) -> dict[str, Part]:
    libraries = {name.removeprefix("lib").partition(".so")[0]: name for name in loads}
    examined = examine(
        root, packages=root / "packages", version_of=(wheels or {}).get, loader=libraries.get
    )
    return {part.name: part for part in examined}


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_on_an_empty_machine_everything_is_missing_and_says_what_to_do(tmp_path: Path) -> None:
    machine = parts(tmp_path)
    assert next(iter(machine)) == "NVIDIA driver"
    assert {"onnxruntime-gpu", "libcuda.so.1", *LIBRARIES} < set(machine)
    assert all(part.found is None and part.remedy for part in machine.values())


def test_a_driver_is_found_with_its_version(tmp_path: Path) -> None:
    touch(tmp_path / "proc/driver/nvidia/version", f"{VERSION}\nGCC version: gcc 14\n")
    driver = parts(tmp_path)["NVIDIA driver"].found
    assert driver is not None
    assert "580.65.06" in driver
    assert "GCC" not in driver
    touch(tmp_path / "wsl/dev/dxg")
    assert "WSL" in (parts(tmp_path / "wsl")["NVIDIA driver"].found or "")


def test_libraries_of_the_version_are_found_in_packages_the_system_and_by_the_loader(
    tmp_path: Path,
) -> None:
    touch(tmp_path / "packages/nvidia/cu13/lib/libcublas.so.13")
    touch(tmp_path / "usr/local/cuda/lib64/libcudart.so.13")
    touch(tmp_path / "usr/lib64/libcublasLt.so.12")
    machine = parts(tmp_path, loads=("libcurand.so.10", "libcublasLt.so.12"))
    there = {name for name, part in machine.items() if part.found}
    assert there == {"libcublas.so.13", "libcudart.so.13", "libcurand.so.10"}


@pytest.mark.parametrize(
    ("wheels", "name", "found", "remedy"),
    [
        (("onnxruntime",), "onnxruntime-gpu", None, "uninstall onnxruntime && pip install"),
        (("onnxruntime-gpu",), "onnxruntime-gpu", "1.31.1", ""),
        (
            ("onnxruntime", "onnxruntime-gpu"),
            "onnxruntime-gpu alone",
            None,
            "uninstall onnxruntime onnxruntime-gpu",
        ),
    ],
)
def test_only_the_gpu_wheel_alone_is_usable(
    tmp_path: Path, wheels: tuple[str, ...], name: str, found: str | None, remedy: str
) -> None:
    part = parts(tmp_path, wheels=dict.fromkeys(wheels, "1.31.1"))[name]
    assert part.found == found
    assert remedy in part.remedy


def test_an_optional_part_is_never_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Part(name="a", found="yes", remedy="")
    optional = Part(name="b", found=None, remedy="", is_optional=True)
    needed = Part(name="c", found=None, remedy="")
    monkeypatch.setattr(cuda_setup, "examine", lambda: iter([there, optional, needed]))
    assert missing_part() == needed
    monkeypatch.setattr(cuda_setup, "examine", lambda: iter([there, optional]))
    assert missing_part() is None

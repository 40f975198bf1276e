"""ARM machines in software: an aarch64 Python with Ortolan's runtime, run by qemu-user.

    python -m tests.arm.machine build/arm/machine

Downloads Debian's Python and the wheels of the runtime (60 MB), and unpacks them (240 MB). Changes
nothing outside that folder: apt gets its own state there, and the packages are not installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.debian import SetupError, download, run

REPOSITORY = Path(__file__).parents[2]
QEMU = "qemu-aarch64-static"
PYTHON = "3.11"
"""Version of Python: Debian 12 has no other."""

_DEBS = (
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "zlib1g", "libexpat1", "libbz2-1.0"),
    *("liblzma5", "libffi8", "libssl3", "libuuid1", "libcrypt1", f"libpython{PYTHON}-minimal"),
    *(f"libpython{PYTHON}-stdlib", f"python{PYTHON}-minimal"),
)
_WHEELS = (
    *("onnxruntime", "flatbuffers", "packaging", "numpy", "msgspec", "protobuf"),
    *("tokenizers", "click"),
)
"""Packages that the runtime imports; tokenizers works without the rest of its dependencies."""

_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")

_BASIC = "fp asimd evtstrm aes pmull sha1 sha2 crc32"
CPUS: Mapping[str, tuple[str, str]] = {
    "cortex-a72": ("0xd08", _BASIC),
    "cortex-a76": ("0xd0b", f"{_BASIC} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"),
}
"""Part numbers and features. The a76 multiplies 8-bit integers in one instruction (asimddp)."""

_CORE = """processor\t: {number}
BogoMIPS\t: 108.00
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: {part}
CPU revision\t: 0

"""
_CORES = 2


def missing(machine: Path) -> str | None:
    """Return what a machine in this folder lacks, or `None`."""
    if shutil.which(QEMU) is None:
        return f"{QEMU} is missing. Install Debian's qemu-user-static"
    if not (machine / "complete").exists():
        return f"{machine} holds no machine. Run `make test-arm`"
    return None


def make(machine: Path) -> None:
    """Download and unpack everything, unless an earlier call completed.

    Raises:
        SetupError: a program is missing, or a download failed.
    """
    for program, package in (
        (QEMU, "qemu-user-static"),
        ("apt-get", "apt"),
        ("dpkg-deb", "dpkg"),
    ):
        if shutil.which(program) is None:
            raise SetupError(f"{program} is missing. Install {package} on a Debian 12 system.")
    if (machine / "complete").exists():
        return
    shutil.rmtree(machine, ignore_errors=True)
    root, downloads = machine / "root", machine / "downloads"
    downloads.mkdir(parents=True)
    download(_DEBS, downloads, state=machine / "apt", architecture="arm64")
    for deb in downloads.glob("*.deb"):
        run(["dpkg-deb", "-x", str(deb), str(root)], cwd=machine)
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
    pip += ["--python-version", PYTHON, "--implementation", "cp", *platforms]
    pip += ["-c", str(REPOSITORY / "constraints.txt"), *_WHEELS]
    run(pip, cwd=downloads)
    for wheel in downloads.glob("*.whl"):
        shutil.unpack_archive(wheel, machine / "packages", "zip")
    for cpu in CPUS:
        add_view(machine, cpu, machine / cpu)
    shutil.rmtree(downloads)
    (machine / "complete").touch()


def ortolan(
    machine: Path, cpu: str, *words: str | Path, view: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line of this repository on a processor, or on a `view` of one."""
    root = view or machine / cpu
    paths = [str(machine / "packages"), str(REPOSITORY / "src")]
    return subprocess.run(
        [
            *(QEMU, "-cpu", cpu, "-L", str(root), str(root / "usr" / "bin" / f"python{PYTHON}")),
            *("-m", "ortolan", *map(str, words)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def add_view(machine: Path, cpu: str, view: Path, *, available: int | None = None) -> None:
    """Make a view of the root for a processor, with a cpuinfo of its own.

    Args:
        machine: the machine.
        cpu: the processor.
        view: new folder.
        available: free memory that the processor shows, in bytes; by default this machine's.

    qemu-user 7.2 shows the host's /proc/cpuinfo. onnxruntime reads it to choose kernels: it crashes
    on that of an x86, and a feature that the processor lacks ends in an illegal instruction.
    """
    part, features = CPUS[cpu]
    (view / "proc").mkdir(parents=True)
    for name in ("usr", "lib", "etc"):
        (view / name).symlink_to(machine / "root" / name)
    cores = [_CORE.format(number=i, features=features, part=part) for i in range(_CORES)]
    (view / "proc" / "cpuinfo").write_text("".join(cores))
    if available is not None:
        meminfo = f"MemAvailable: {available // 1024} kB\nSwapFree: 0 kB\n"
        (view / "proc" / "meminfo").write_text(meminfo)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        make(args.folder.resolve())
    except SetupError as error:
        sys.exit(f"tests.arm.machine: {error}")

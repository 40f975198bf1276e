"""Parts that an NVIDIA GPU needs to run a bundle, and which are present.

Looks at files, packages and libraries but loads none, so a complete set-up has still not been
tried. Imports nothing of the runtime, which needs onnxruntime, so `ortolan doctor` works without.

Source of the libraries: the dynamic section of the CUDA provider in onnxruntime-gpu 1.31.1, and its
`preload_dlls`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

INSTALL = 'pip uninstall onnxruntime && pip install "ortolan[cuda]"'
"""Both packages own the folder `onnxruntime`, so the first has to go."""

LIBRARIES = {
    "libcudart.so.13": "nvidia-cuda-runtime~=13.0",
    "libcublas.so.13": "nvidia-cublas~=13.0",
    "libcublasLt.so.13": "nvidia-cublas~=13.0",
    "libcurand.so.10": "nvidia-curand~=10.0",
    "libcudnn.so.9": "nvidia-cudnn-cu13~=9.0",
}
"""Libraries that the provider links with, and the packages that contain them."""

OPTIONAL = frozenset({"libcudnn.so.9"})
"""Those that some kernels load on demand, such as convolutions."""

SYSTEM_FOLDERS = (
    "usr/local/cuda/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/wsl/lib",
)

Finder = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the set-up; `found` is its version or place, or `None`."""

    name: str
    found: str | None
    remedy: str
    is_optional: bool = False


def examine(
    root: Path = Path("/"),
    *,
    packages: Path | None = None,
    version_of: Finder | None = None,
    loader: Finder = find_library,
) -> Iterator[Part]:
    """Look at each part, in the order in which they need each other: the driver first."""
    yield _driver(root)
    searched = _folders(root, packages)
    yield _library(
        "libcuda.so.1",
        searched,
        loader,
        "Install the driver of the GPU; in a container, start it with the NVIDIA runtime "
        "(docker run --gpus all).",
    )
    yield _wheel(version_of or installed_version)
    for name, package in LIBRARIES.items():
        yield _library(name, searched, loader, f'Run: pip install "{package}"')


def missing_part() -> Part | None:
    """Return the first required part that is missing."""
    return next((part for part in examine() if part.found is None and not part.is_optional), None)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver(root: Path) -> Part:
    found = None
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
        found = " ".join(text.partition("\n")[0].removeprefix("NVRM version:").split())
    except (OSError, UnicodeDecodeError):
        if (root / "dev/dxg").exists():
            found = "of Windows, through WSL"
    return Part(
        name="NVIDIA driver",
        found=found,
        remedy="Install it and restart; without a GPU, choose the device cpu.",
    )


def _wheel(version_of: Finder) -> Part:
    gpu, cpu = version_of("onnxruntime-gpu"), version_of("onnxruntime")
    if gpu is not None and cpu is not None:
        return Part(
            name="onnxruntime-gpu alone",
            found=None,
            remedy="onnxruntime is installed too, and the two overwrite each other's files. "
            'Run: pip uninstall onnxruntime onnxruntime-gpu && pip install "ortolan[cuda]"',
        )
    return Part(name="onnxruntime-gpu", found=gpu, remedy=f"Run: {INSTALL}")


def _library(name: str, folders: list[Path], loader: Finder, remedy: str) -> Part:
    found = next((str(folder / name) for folder in folders if (folder / name).exists()), None)
    if found is None and loader(name.removeprefix("lib").partition(".so")[0]) == name:
        found = "known to the loader"
    return Part(name=name, found=found, remedy=remedy, is_optional=name in OPTIONAL)


def _folders(root: Path, packages: Path | None) -> list[Path]:
    """Folders of libraries: of NVIDIA's packages, of the loader's variable, and of the system."""
    places = [packages] if packages else [Path(entry) for entry in sys.path if entry]
    own = os.environ.get("LD_LIBRARY_PATH", "") if root == Path("/") else ""
    return [
        *sorted(folder for place in places for folder in place.glob("nvidia/*/lib")),
        *(Path(entry) for entry in own.split(os.pathsep) if entry),
        *(root / folder for folder in SYSTEM_FOLDERS),
    ]

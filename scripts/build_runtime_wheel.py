"""Build the wheel of `ortolan-runtime`: the package `ortolan` without modeling and export.

    python scripts/build_runtime_wheel.py [dist]

Version, dependencies and extras are those of pyproject.toml, with onnxruntime as a dependency.
Needs the packages build and setuptools.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "scripts" / "ortolan-runtime.md"
LEFT_OUT = ("modeling", "export")
EXTRAS = ("audio", "chat", "grammar", "hub", "plot", "ray", "serve", "vision", "webgpu")
"""Extras of `ortolan` that need neither PyTorch nor another build of onnxruntime."""

_PYPROJECT = """\
[build-system]
requires = {requires}
build-backend = "setuptools.build_meta"

[project]
name = "ortolan-runtime"
version = {version}
description = "Run Ortolan bundles with NumPy and onnxruntime"
readme = "README.md"
license = {license}
license-files = ["LICENSE"]
requires-python = {python}
dependencies = {dependencies}

[project.optional-dependencies]
{extras}

[project.scripts]
ortolan = "ortolan.cli:main"

[project.entry-points.pyinstaller40]
hook-dirs = "ortolan.freezing:hook_folders"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
ortolan = {data}
"""


class BuildError(Exception):
    """The wheel could not be built. Contains the output of the build."""


def build_wheel(out: Path) -> Path:
    """Build the wheel in the folder `out` and return its path.

    Raises:
        BuildError: the build failed.
    """
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        copy_source(source)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
        command += ["--outdir", str(source / "dist"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{done.stdout}{done.stderr}")
        (wheel,) = (source / "dist").glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, out))


def copy_source(folder: Path) -> None:
    """Write the source of the distribution."""
    ignore = shutil.ignore_patterns("__pycache__", *LEFT_OUT)
    package = folder / "src" / "ortolan"
    # links are followed: the copy of runtime is a folder
    shutil.copytree(ROOT / "src" / "ortolan", package, ignore=ignore)
    for name in ("LICENSE", "setup.py"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(README, folder / "README.md")
    (folder / "pyproject.toml").write_text(
        pyproject(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    )


def pyproject(original: dict[str, Any]) -> str:
    """Derive pyproject.toml from that of `ortolan`."""
    project = original["project"]
    optional = project["optional-dependencies"]
    runtime = optional["cpu"]
    data = original["tool"]["setuptools"]["package-data"]["ortolan"]
    extras = {name: [line for line in optional[name] if line not in runtime] for name in EXTRAS}
    return _PYPROJECT.format(
        requires=_toml(original["build-system"]["requires"]),
        version=_toml(project["version"]),
        license=_toml(project["license"]),
        python=_toml(project["requires-python"]),
        dependencies=_toml([*project["dependencies"], *runtime]),
        extras="\n".join(f"{name} = {_toml(lines)}" for name, lines in extras.items()),
        data=_toml([name for name in data if not re.match(f"({'|'.join(LEFT_OUT)})/", name)]),
    )


def _toml(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)  # a string or a list of them reads the same


def main() -> int:
    """Build the wheel in the folder given on the command line, by default dist."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist")
    try:
        print(build_wheel(parser.parse_args().out))
    except BuildError as error:
        print(f"build_runtime_wheel.py: the build failed:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

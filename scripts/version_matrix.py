"""Test wheels with several versions of Python and onnxruntime, and print a table.

    python scripts/version_matrix.py [--python python3.11 ...] [--onnxruntime 1.31.1 ...] [--full]

Each pair gets a new environment with the wheel of `ortolan-runtime`, constraints.txt and the
packages that tests import, and runs the tests in tests/runtime that need no PyTorch. With --full,
the wheel of `ortolan` with the extra `export` runs all of tests/runtime and tests/export/passes.
onnxruntime is installed last, without regard to what the wheel requires, so that older versions
show why they are excluded. Needs the packages build and setuptools, and a package index.
Exit status 1 if a test failed or a wheel could not be installed.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from build_runtime_wheel import build_wheel

ROOT = Path(__file__).parents[1]

ONNXRUNTIME = ("1.30.0", "1.31.1", "1.32.0")
PYTHON = ("python3.11", "python3.12", "python3.13", "python3.14")
"""Programs to look for."""

TEST_PACKAGES = (
    *("pytest", "hypothesis", "jsonschema", "onnx", "onnx-ir"),
    *("jinja2", "llguidance", "matplotlib", "pillow", "soundfile", "soxr"),
)
"""Packages that tests of the runtime import."""

ABSENT = ("ortolan.export", "ortolan.modeling", "torch", "transformers")
"""Modules that an environment of `ortolan-runtime` lacks."""


def imports(file: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports when it is imported itself."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@cache
def needs_torch(file: Path) -> bool:
    """Whether a test file imports PyTorch, or a part of Ortolan that does."""
    for name in imports(file):
        if any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT):
            return True
        helper = ROOT / f"{name.replace('.', '/')}.py"
        if name.startswith("tests.") and helper.exists() and needs_torch(helper):
            return True
    return False


def tests(*, is_full: bool) -> list[Path]:
    """Test files to run."""
    files = sorted((ROOT / "tests" / "runtime").rglob("test_*.py"))
    if not is_full:
        return [file for file in files if not needs_torch(file)]
    return [*files, ROOT / "tests" / "export" / "passes"]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program without the working tree on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def version_of(python: str) -> str | None:
    """Version of an interpreter, or None if there is none of this name."""
    try:
        done = run(python, "-c", "import platform; print(platform.python_version())")
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def result(python: str, onnxruntime: str, requirement: str, files: Sequence[Path]) -> list[str]:
    """Test one pair; the last line of pytest, then the tests that failed.

    Args:
        python: program to make the environment with.
        onnxruntime: its version.
        requirement: the wheel, with extras.
        files: test files.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "bin"
        pip: list[str | Path] = [programs / "pip", "install", "-q"]
        pinned: list[str | Path] = ["-c", "constraints.txt", requirement, *TEST_PACKAGES]
        if any(needs_torch(file) for file in files if file.is_file()):
            pinned += ["gguf", "peft", "transformers"]
        # test folders may be on the path, src may not: tests must import the wheel
        path = "pythonpath=benchmarks models scripts"
        options: list[str | Path] = ["-q", "-p", "no:cacheprovider", "-o", path]
        steps: list[list[str | Path]] = [
            [python, "-m", "venv", folder],
            [*pip, *pinned],
            [*pip, "--no-deps", f"onnxruntime=={onnxruntime}"],
            [programs / "pytest", *options, *files],
        ]
        for step in steps:
            done = run(*step)
            if done.returncode:
                break
    lines = done.stdout.splitlines() if step is steps[-1] else []
    if not lines:
        return [f"not installed: {done.stderr.strip().splitlines()[-1]}"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR "))]
    return [lines[-1].split(" in ")[0], *failed]


def main() -> int:
    """Print the table for the versions given on the command line, by default all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHON)
    parser.add_argument("--onnxruntime", nargs="+", default=ONNXRUNTIME)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    files = tests(is_full=args.full)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        if args.full:
            build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
            run(sys.executable, *build).check_returncode()
            (wheel,) = Path(folder).glob("*.whl")
            requirement = f"{wheel}[export]"
        else:
            requirement = str(build_wheel(Path(folder)))
        print("| onnxruntime | Python | result |\n|---|---|---|", flush=True)
        for python in args.python:
            version = version_of(python)
            for onnxruntime in args.onnxruntime if version else ():
                line, *failed = result(python, onnxruntime, requirement, files)
                print(f"| {onnxruntime} | {version} | {line} |", flush=True)
                names = [f"{onnxruntime}, Python {version}: {name}" for name in failed]
                problems += names or ([line] if line.startswith("not installed") else [])
            if version is None:
                print(f"| | {python} | not found |", flush=True)
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

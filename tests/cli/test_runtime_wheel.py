"""`ortolan-runtime` runs and verifies bundles without PyTorch, and names what it lacks.

Installs with pip and constraints.txt, so it needs a package index or its cache.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import build_runtime_wheel
import check_wheel

REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / "models"

ABSENT = ("torch", "onnx", "safetensors", "jinja2", "PIL", "matplotlib")
"""Packages that it must not install."""


def runtime_only(folder: Path) -> Path:
    """Write the source of the distribution; return the folder to import from."""
    build_runtime_wheel.copy_source(folder)
    return folder / "src"


def run(*words: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program without the working tree on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, words)],
        env=environment if path is None else {**environment, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["export", "modeling", "ExportOptions", "State"])
def test_names_of_the_other_packages_say_what_to_install(name: str, tmp_path: Path) -> None:
    code = f"""
import ortolan
assert not hasattr(ortolan, 'no_such_name')
try:
    ortolan.{name}
except ortolan.RuntimeOnlyError as error:
    print(error.code, error)
"""
    done = run(sys.executable, "-c", code, path=runtime_only(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"runtime-only ortolan.{name} is not part of ortolan-runtime")
    assert 'pip uninstall ortolan-runtime && pip install "ortolan[export]"' in done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("export", "a", "b"), "export"),
        (("export-genai", "a", "b"), "export"),
        (("families",), "export"),
        (("train", "a"), "train"),
        (("inspect", str(MODELS / "pythonic")), "export"),
    ],
)
def test_commands_of_the_other_packages_say_what_to_install(
    words: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    done = run(sys.executable, "-m", "ortolan", *words, path=runtime_only(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "is not part of ortolan-runtime" in line
    assert f'pip install "ortolan[{extra}]"' in line


def test_help_lists_the_commands_that_work(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "ortolan", "--help", path=runtime_only(tmp_path))
    commands = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"run", "verify", "inspect", "bench", "doctor", "pack", "chat"} <= commands
    assert commands.isdisjoint({"export", "export-genai", "families", "train"})


def test_missing_extras_are_those_of_ortolan_runtime(tmp_path: Path) -> None:
    code = "from ortolan.distribution import pip_install as p; print(p('cpu'), p('chat'), sep='|')"
    done = run(sys.executable, "-c", code, path=runtime_only(tmp_path))
    cpu, chat = done.stdout.strip().split("|")
    assert cpu == "pip install ortolan-runtime"
    assert chat == 'pip install "ortolan-runtime[chat]"'


@pytest.mark.slow
def test_wheel_runs_and_verifies_in_a_new_environment(tmp_path: Path, bundle: Path) -> None:
    wheel = build_runtime_wheel.build_wheel(tmp_path / "dist")
    assert list(check_wheel.problems(wheel, REPOSITORY)) == []
    programs = tmp_path / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(programs.parent)], check=True)
    pip = run(programs / "pip", "install", "-c", REPOSITORY / "constraints.txt", wheel)
    assert pip.returncode == 0, pip.stderr
    ortolan = programs / "ortolan"
    continued = run(ortolan, "run", bundle, "def", "-n", "4")
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout
    verified = run(ortolan, "verify", bundle)
    assert verified.returncode == 0, verified.stderr
    assert "PASS" in verified.stdout
    export = run(ortolan, "export", "a", "b")
    assert export.returncode == 2
    assert 'pip install "ortolan[export]"' in export.stderr
    code = f"import importlib.util as u; print([n for n in {ABSENT} if u.find_spec(n)])"
    assert run(programs / "python", "-c", code).stdout.strip() == "[]"

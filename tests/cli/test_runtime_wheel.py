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

NAMES = """
import ortolan
from ortolan.distribution import pip_install
assert not hasattr(ortolan, 'no_such_name')
for name in ('export', 'modeling', 'ExportOptions', 'State'):
    try:
        getattr(ortolan, name)
    except ortolan.RuntimeOnlyError as error:
        print(error.code, error)
print(pip_install('cpu'))
print(pip_install('chat'))
"""

COMMANDS = """
import sys
from ortolan.cli import main
for line in sys.argv[1:]:
    sys.argv = ['ortolan', *line.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == (0 if line == '--help' else 2), line
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to import the distribution from."""
    folder = tmp_path_factory.mktemp("runtime")
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


def test_names_of_the_other_packages_say_what_to_install(source: Path) -> None:
    done = run(sys.executable, "-c", NAMES, path=source)
    assert done.returncode == 0, done.stderr
    *names, cpu, chat = done.stdout.splitlines()
    assert len(names) == 4
    for name in names:
        assert name.startswith("runtime-only ortolan.")
        assert "is not part of ortolan-runtime" in name
        assert 'pip uninstall ortolan-runtime && pip install "ortolan[export]"' in name
    assert (cpu, chat) == (
        "pip install ortolan-runtime",
        'pip install "ortolan-runtime[chat]"',
    )


def test_commands_of_the_other_packages_say_what_to_install(source: Path) -> None:
    lines = ("export a b", "export-genai a b", "families", f"inspect {MODELS / 'pythonic'}")
    done = run(sys.executable, "-c", COMMANDS, *lines, "train a", "--help", path=source)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 5
    for number, line in enumerate(said):
        assert "is not part of ortolan-runtime" in line
        assert f'pip install "ortolan[{"train" if number == 4 else "export"}]"' in line
    shown = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"run", "verify", "inspect", "bench", "doctor", "pack", "chat"} <= shown
    assert shown.isdisjoint({"export", "export-genai", "families", "train"})


@pytest.mark.slow
def test_wheel_runs_and_verifies_in_a_new_environment(tmp_path: Path, bundle: Path) -> None:
    wheel = build_runtime_wheel.build_wheel(tmp_path / "dist")
    assert list(check_wheel.problems(wheel, REPOSITORY)) == []
    programs = tmp_path / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(programs.parent)], check=True)
    pip = run(programs / "pip", "install", "-c", REPOSITORY / "constraints.txt", wheel)
    assert pip.returncode == 0, pip.stderr
    continued = run(programs / "ortolan", "run", bundle, "def", "-n", "4")
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout
    verified = run(programs / "ortolan", "verify", bundle)
    assert verified.returncode == 0, verified.stderr
    assert "PASS" in verified.stdout
    export = run(programs / "ortolan", "export", "a", "b")
    assert export.returncode == 2
    assert 'pip install "ortolan[export]"' in export.stderr
    code = f"import importlib.util as u; print([n for n in {ABSENT} if u.find_spec(n)])"
    assert run(programs / "python", "-c", code).stdout.strip() == "[]"

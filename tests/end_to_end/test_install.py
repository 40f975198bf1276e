"""The small installation runs bundles, and has none of what made them."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

HEAVY = ("torch", "onnx", "onnxscript", "onnx_ir", "transformers", "safetensors")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a venv that has `.[cpu]` alone."""
    venv = tmp_path_factory.mktemp("install") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/pip"), "install", "--quiet", "-c", "constraints.txt", ".[cpu]"]
    subprocess.run(pip, cwd=REPOSITORY, check=True)
    return venv / "bin"


@pytest.mark.slow
def test_small_installation_runs_and_verifies_a_bundle(small: Path, bundle: Path) -> None:
    for arguments in (["run", str(bundle), "def", "-n", "4"], ["verify", str(bundle)]):
        done = subprocess.run([str(small / "ortolan"), *arguments], capture_output=True, check=True)
        assert done.stdout


@pytest.mark.slow
def test_small_installation_has_no_training_packages(small: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {HEAVY} if u.find_spec(n)])"
    done = subprocess.run([str(small / "python"), "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.slow
def test_missing_extras_are_named(small: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(small / "ortolan"), "export", "a", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'pip install "ortolan[export]"' in done.stderr

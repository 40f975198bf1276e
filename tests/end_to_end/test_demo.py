"""`make demo` in a fresh clone, before anything is set up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_demo_of_a_fresh_clone_exports_verifies_writes_and_measures(tmp_path: Path) -> None:
    clone = tmp_path / "ortolan"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        ["make", "demo"], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "device    PASS" in done.stdout
    assert "tg128" in done.stdout

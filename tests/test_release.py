"""Release builds are reproducible, and the sdist builds the same wheel."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs a clone"
    ),
]

# git reads a clone of another user only if told to
TRUST = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": str(ROOT),
}


def test_builds_repeat_and_the_sdist_makes_the_same_package(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    command = [sys.executable, str(ROOT / "scripts" / "build_release.py"), str(dist)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | TRUST)
    assert done.returncode == 0, done.stderr  # two builds had equal bytes
    assert len(done.stdout.splitlines()) == 3
    (sdist,) = dist.glob("ortolan-*.tar.gz")
    (wheel,) = dist.glob("ortolan-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (rebuilt,) = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(rebuilt) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        for name in first.namelist():
            if not name.endswith("RECORD"):
                assert first.read(name) == second.read(name), name

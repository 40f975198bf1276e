"""Release builds are reproducible, and the sdist builds the same wheel."""

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    for name in ("ortolan", "ortolan-runtime"):
        assert named_in_sbom(dist, name) == required(dist, name)


def packed_file(dist: Path, name: str, ending: str) -> bytes:
    """The only file of a wheel with this ending."""
    (wheel,) = dist.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [member for member in archive.namelist() if member.endswith(ending)]
        return archive.read(member)


def named_in_sbom(dist: Path, name: str) -> set[str]:
    document = json.loads(packed_file(dist, name, f".dist-info/sboms/{name}.cdx.json"))
    assert document["metadata"]["component"]["name"] == name
    return {component["name"] for component in document["components"]}


def required(dist: Path, name: str) -> set[str]:
    """Packages in the metadata of a wheel, without itself."""
    metadata = email.message_from_bytes(packed_file(dist, name, ".dist-info/METADATA"))
    lines = metadata.get_all("Requires-Dist", [])
    return {str(canonicalize_name(Requirement(line).name)) for line in lines} - {name}

"""Runs the tests of WebGPU on a GPU in software, where the machine has one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortolan.runtime.engine.providers import obstacle

SCRIPT = Path(__file__).with_name("software_gpu.sh")
TESTS = Path(__file__).with_name("test_webgpu.py")

SKIPPED = 77
"""Status of the script where the machine lacks something."""

PROBE = "from ortolan.runtime.engine.providers import obstacle; print(obstacle('webgpu') or '')"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["loader", "driver"])
def test_a_missing_part_of_vulkan_is_an_obstacle(missing: str, tmp_path: Path) -> None:
    empty = tmp_path / ("libvulkan.so.1" if missing == "loader" else "driver.json")
    empty.touch()
    name = "LD_LIBRARY_PATH" if missing == "loader" else "VK_ICD_FILENAMES"
    value = tmp_path if missing == "loader" else empty
    probe = subprocess.run(
        [SCRIPT, sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, name: str(value)},
    )
    if probe.returncode == SKIPPED:
        pytest.skip(probe.stderr.strip())
    assert "did not start" in probe.stdout
    assert "libvulkan1 mesa-vulkan-drivers" in probe.stdout


@pytest.mark.slow
def test_webgpu_in_software() -> None:
    if obstacle("webgpu") is None:
        pytest.skip("this machine has a GPU: tests/gpu/test_webgpu.py runs on it")
    probe = subprocess.run(
        [SCRIPT, sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode == SKIPPED:
        pytest.skip(probe.stderr.strip())
    assert probe.returncode == 0, probe.stderr
    if probe.stdout.strip():
        pytest.skip(probe.stdout.strip())
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        TESTS,
    ]
    done = subprocess.run([SCRIPT, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout

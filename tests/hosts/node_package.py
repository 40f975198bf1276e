"""The JavaScript package with its dependencies, which tests in Node and Chromium need."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["PACKAGE", "installed_package"]

PACKAGE = Path(__file__).parents[2] / "hosts" / "js"


def installed_package() -> Path:
    """Install the dependencies if necessary. Skips where Node or they are missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node. Install node 20 or newer, with npm")
    import fcntl  # not on Windows

    with (PACKAGE / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes would install over each other
        if not (PACKAGE / "node_modules").exists():
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(install, cwd=PACKAGE, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"npm ci failed: {done.stderr.strip()[-300:]}")
    return PACKAGE

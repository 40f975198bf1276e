"""Pages in headless Chromium: a server of a folder, and programs of Node that drive it."""

import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.node_package import PACKAGE, installed_package

__all__ = ["chromium", "run_node", "served"]


def chromium() -> str:
    """The program. Skips where it is missing."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium. Run `make software-gpu`, which installs Debian's")
    return program


def run_node(*arguments: str | Path) -> str:
    """Run a program of the package, and return what it prints."""
    command = ["node", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=installed_package(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, while it is served as `demo/serve.py` does."""
    spec = importlib.util.spec_from_file_location("serve", PACKAGE / "demo" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    server = serve.server(str(folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

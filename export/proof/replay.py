"""The certificate of a new bundle, replayed by the runtime in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from ortolan.export.errors import ExportError
from ortolan.runtime.certificate import Report

_SCRIPT = """
import sys, msgspec
from ortolan.runtime.certificate import verify
from ortolan.errors import OrtolanError
try:
    report = verify(sys.argv[1], device="cpu")
except OrtolanError as error:
    sys.exit(f"{type(error).__name__}: {error}")
sys.stdout.buffer.write(msgspec.json.encode(report))
"""


def replay(folder: Path) -> Report:
    """Replay the certificate on the CPU; the memory of PyTorch is not the runtime's.

    Raises:
        ExportError: the bundle does not run.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        # -P: the working directory is no place to import from
        [sys.executable, "-P", "-c", _SCRIPT, str(folder)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1] if lines else f"exit status {done.returncode}"
        raise ExportError(f"verify: expected the new bundle to run, got: {message}")
    return msgspec.json.decode(done.stdout, type=Report)

"""Replays the certificate of a new bundle in a subprocess."""

from pathlib import Path

import msgspec

from ortolan.export.errors import ExportError
from ortolan.export.process import ProcessError, run_python
from ortolan.export.progress import Progress, silent
from ortolan.runtime.verification.report import Report

_SCRIPT = """
import sys, msgspec
from ortolan.runtime.verification.replay import verify
from ortolan.errors import OrtolanError
try:
    report = verify(
        sys.argv[1],
        adapter=sys.argv[2] if len(sys.argv) > 2 else None,
        device="cpu",
        exact=False,
        isolate=False,
        progress=lambda done, total: print(done, total, flush=True),
    )
except OrtolanError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(msgspec.json.encode(report).decode())
"""


def replay(folder: Path, progress: Progress = silent, *, adapter: Path | None = None) -> Report:
    """Replay the certificate on the CPU, away from the memory of PyTorch."""
    printed: list[str] = []

    def note(line: str) -> None:
        if line.startswith("{"):
            printed.append(line)
        else:
            done, total = map(int, line.split())
            progress("verify", done, total)

    progress("verify", 0, 1)
    try:
        run_python("-c", _SCRIPT, *map(str, filter(None, (folder, adapter))), on_line=note)
    except ProcessError as error:
        raise ExportError(f"The new bundle does not run: {error}") from None
    return msgspec.json.decode("".join(printed), type=Report)

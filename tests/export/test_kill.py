"""An export killed for real, wherever it is, loses no bundle."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ortolan
from ortolan.export.output import place_of
from ortolan.runtime import BundleNotFoundError, open_bundle
from ortolan.runtime.bundle.staging import settle

pytestmark = pytest.mark.slow

POINTS = 20

# One line for each step of the export, so that a kill hits the same places however fast it is.
EXPORT = """
import sys
import ortolan
print("begin", flush=True)
ortolan.export(
    sys.argv[1],
    sys.argv[2],
    force=True,
    max_context=int(sys.argv[3]),
    progress=lambda step, done, total: print(step, done, total, flush=True),
)
print("end", flush=True)
"""

OLD, NEW = 500, 400


def start(checkpoint: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", EXPORT, str(checkpoint), str(out), str(NEW)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def context_at(out: Path) -> int | None:
    """Which bundle is there, every file checked: its context; None where there is none."""
    try:
        return open_bundle(out, full_check=True).manifest.context_length
    except BundleNotFoundError:
        return None


def test_export_killed_anywhere_leaves_a_whole_bundle_or_none(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    ortolan.export(checkpoint, out, max_context=OLD)
    with start(checkpoint, tmp_path / "counted") as whole:
        lines = len(whole.communicate()[0].splitlines())
    assert whole.returncode == 0
    draw = random.Random(5)
    interrupted = 0
    for point in range(POINTS):
        with start(checkpoint, out) as process:
            assert process.stdout is not None
            for _ in range(1 + point * (lines - 1) // POINTS):
                process.stdout.readline()
            time.sleep(draw.uniform(0, 0.3))
            process.kill()
        interrupted += process.returncode != 0
        assert context_at(out) in (OLD, NEW, None)
        settle(place_of(out))
        assert context_at(out) in (OLD, NEW)
    assert interrupted >= POINTS // 2
    ortolan.export(checkpoint, out, max_context=OLD, force=True)
    assert context_at(out) == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "counted"]

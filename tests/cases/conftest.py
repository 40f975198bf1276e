from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cases import Case, Variant
from tests.cases.run import Run, Runs


@pytest.fixture
def run(
    case: Case, variant: Variant, runs: Runs, tmp_path: Path, snapshot: SnapshotAssertion
) -> Run:
    """The run of a test of a law."""
    run = runs(case, variant.name)
    run.folder, run.snapshot = tmp_path, snapshot
    return run

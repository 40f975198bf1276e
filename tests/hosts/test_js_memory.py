"""What models in JavaScript hold: nothing after errors, aborts, dropped streams and `dispose`."""

from pathlib import Path

import pytest
from tests.hosts.js_runs import run_tests
from tests.runtime import tiny_decoder


@pytest.mark.slow
def test_states_are_freed(tmp_path: Path) -> None:
    tiny_decoder.write_bundle(tmp_path / "bundle")
    run_tests("memory", {"bundle": str(tmp_path / "bundle")}, tmp_path)

from pathlib import Path

from tests.runtime.tiny_decoder import write_bundle

from ortolan.runtime import open_bundle
from ortolan.runtime.engine import ort_session


def test_sessions_run_without_kleidiai(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle").path)
    options = ort_session._options(bundle, threads=1)
    assert options.get_session_config_entry("mlas.disable_kleidiai") == "1"

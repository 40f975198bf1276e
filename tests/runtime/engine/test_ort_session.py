from pathlib import Path

import pytest
from tests.runtime.tiny_decoder import write_bundle

from ortolan.runtime import open_bundle
from ortolan.runtime.engine import ort_session


def test_sessions_run_without_kleidiai(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle").path)
    options = ort_session._options(bundle, threads=1)
    assert options.get_session_config_entry("mlas.disable_kleidiai") == "1"


@pytest.mark.parametrize(
    ("split", "stopping"), [(False, {"decoder": False}), (True, {"prefill": True, "decode": False})]
)
def test_threads_of_a_prompt_do_not_disturb_the_steps_after_it(
    split: bool, stopping: dict[str, bool], tmp_path: Path
) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle", split=split).path)
    name, value = ort_session._STOP_SPINNING
    for role, stops in stopping.items():
        options = ort_session.open_session(bundle, role, 1, None).get_session_options()
        if stops:
            assert options.get_session_config_entry(name) == value
        else:
            with pytest.raises(RuntimeError, match=name):
                options.get_session_config_entry(name)

"""Programs that write where their argument says print help instead of writing to `--help`."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.parametrize(
    "program",
    [
        SCRIPTS / "build_release.py",
        SCRIPTS / "build_runtime_wheel.py",
        "tests.arm.machine",
        "tests.hostile.known_crashes",
        "tests.hosts.header",
    ],
    ids=lambda program: Path(program).stem,
)
def test_help_is_printed_and_nothing_written(
    program: str | Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program", "--help"])
    monkeypatch.syspath_prepend(SCRIPTS)
    if isinstance(program, str):  # an earlier test may have imported it
        monkeypatch.delitem(sys.modules, program, raising=False)
    run = runpy.run_path if isinstance(program, Path) else runpy.run_module
    with pytest.raises(SystemExit) as ended:
        run(str(program), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())

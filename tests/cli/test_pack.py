import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Run, error_line, run_in_subprocess


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the keys of these tests out of the user's folders."""
    folder = tmp_path / "state"
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(folder))
    return folder


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def generated(ortolan: Run, bundle: Path) -> tuple[list[int], list[str]]:
    """Tokens, and the lines on stderr."""
    done = ortolan("run", bundle, "def read", "-n", "8", "--ignore-eos", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tokens"], done.stderr.decode().splitlines()


def test_pack_keeps_the_tokens_and_reports_what_it_wrote(
    ortolan: Run,
    copy: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _ = generated(ortolan, copy)
    done = ortolan("pack", copy, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {
        *("folder", "bytes", "weights", "share"),
        *("load_before_s", "load_after_s"),
    }
    assert Path(report["folder"]).parent == copy
    assert (state / "ortolan" / "seal.key").exists()
    assert generated(ortolan, copy) == (expected, [])
    assert ortolan("verify", copy).returncode == 0

    monkeypatch.setenv("XDG_STATE_HOME", str(state / "other"))
    monkeypatch.setenv("LOCALAPPDATA", str(state / "other"))
    tokens, lines = generated(run_in_subprocess, copy)  # pytest would capture the log line here
    assert tokens == expected
    (line,) = lines
    assert "packed weights" in line


def test_pack_of_nothing_is_one_line(tmp_path: Path, state: Path) -> None:
    assert "missing" in error_line("pack", tmp_path / "missing")
    assert not state.exists()

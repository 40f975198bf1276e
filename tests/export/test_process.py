"""Python in a subprocess."""

import time
from pathlib import Path

import pytest

from ortolan.export.process import ProcessError, run_python


def test_lines_are_told_as_they_are_printed() -> None:
    told: list[str] = []
    run_python("-c", "import sys; print(sys.argv[1]); print('last')", "first", on_line=told.append)
    assert told == ["first\n", "last\n"]


def test_a_failure_is_the_last_line_of_the_errors() -> None:
    for script, message in (("raise ValueError('no')", "ValueError: no"), ("exit(3)", "status 3")):
        with pytest.raises(ProcessError, match=message):
            run_python("-c", script, on_line=print)


def test_who_is_told_can_end_it() -> None:
    def stop(line: str) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_python("-c", "import time; print(1, flush=True); time.sleep(60)", on_line=stop)
    assert time.monotonic() - started < 30


def test_modules_are_found_where_they_are_found_here_and_not_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    run_python("-c", "import ortolan.export.process", on_line=print)
    with pytest.raises(ProcessError, match="No module named 'beside'"):
        run_python("-c", "import beside", on_line=print)

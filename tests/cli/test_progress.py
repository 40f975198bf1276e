"""Progress of long commands, and of a prompt at a terminal."""

import io
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from ortolan.cli import progress as module
from ortolan.cli.progress import (
    Outlook,
    Reporter,
    State,
    bar,
    event,
    line,
    progress,
    prompt_progress,
)
from ortolan.export.progress import ESTIMATE

AT_WORK = State(
    command="export",
    step="calibrate",
    what="blocks.0.feed_forward.up.weight",
    fraction=0.25,
    remaining_s=90.0,
    elapsed_s=30.0,
    expected_s=None,
    memory_bytes=1_200_000_000,
)
UNKNOWN = State(
    command="verify",
    step="load",
    what=None,
    fraction=None,
    remaining_s=None,
    elapsed_s=200.0,
    expected_s=None,
    memory_bytes=None,
)


@pytest.fixture
def shown() -> list[State]:
    return []


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def running(command: str, *, as_json: bool) -> click.Context:
    """A command that the command line runs."""
    context = click.Context(click.Command(command), info_name=command)
    context.params["as_json"] = as_json
    return context


STATES = {
    "known": AT_WORK,
    "unknown": UNKNOWN,
    "expected": replace(UNKNOWN, elapsed_s=30.0, expected_s=240.0),
    "longer than expected": replace(UNKNOWN, elapsed_s=300.0, expected_s=240.0),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_a_line_a_bar_or_json(name: str, snapshot: SnapshotAssertion) -> None:
    state = STATES[name]
    assert {"line": line(state), "bar": bar(state), "json": json.loads(event(state))} == snapshot


def test_the_estimate_of_an_export_is_that_of_the_whole_command(shown: list[State]) -> None:
    with Reporter("export", shown.append, first=0, seconds=0.01) as steps:
        steps(ESTIMATE, 0, 240)
        steps("trace", 1, 2)
        wait_for(lambda: bool(shown) and shown[-1].step == "trace")
    assert shown[-1].expected_s == pytest.approx(240, abs=30)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_estimate_is_said_at_once(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "60 s with --effort normal, 20 s with quick"
    with running("export", as_json=as_json), progress() as steps:
        steps(ESTIMATE, 0, 60, sentence)
        steps(ESTIMATE, 60, 60, "calibrate")
        said = capsys.readouterr().err
    if as_json:
        assert json.loads(said)["what"] == sentence
    else:
        assert said == f"export: {sentence}\n"


def outlook(**seconds: float) -> Outlook:
    """An outlook on steps in order, which begin at second 100."""
    made, end = Outlook(), 0.0
    made.expect("", 0, sum(seconds.values()), 100.0)
    for step, own in seconds.items():
        end += own
        made.expect(step, end, sum(seconds.values()), 100.0)
    return made


def test_time_left_is_that_of_the_whole_command() -> None:
    made = outlook(trace=10, calibrate=80, verify=10)
    assert made.left_s("trace", 0.5, 5, 105.0) == pytest.approx(95)
    assert made.left_s("calibrate", 0.25, 20, 130.0) == pytest.approx(70)
    assert made.left_s("verify", None, 5, 195.0) == pytest.approx(5)
    assert made.left_s("witness", 0.5, 5, 205.0) is None


def test_time_left_follows_a_slower_machine_and_never_rises_by_more_than_a_quarter() -> None:
    made, shown = outlook(trace=10, calibrate=80, verify=10), list[float]()
    parts = [("trace", 0, 10), ("calibrate", 10, 90), ("verify", 90, 100)]
    for now in range(1, 390, 8):  # the machine is four times as slow from the start
        work = now / 4
        step, start, end = next(part for part in parts if work < part[2])
        left = made.left_s(step, (work - start) / (end - start), now - 4 * start, 100.0 + now)
        assert left is not None
        shown.append(left)
    assert all(after <= 1.25 * before for before, after in pairwise(shown))
    assert shown[5] == pytest.approx(400 - 41, rel=0.4)  # after a tenth
    assert shown[-1] == pytest.approx(400 - 385, rel=0.3)


def test_a_bar_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    module.draw(bar(AT_WORK))
    module.draw()
    assert [len(row) for row in capsys.readouterr().err.split("\r")] == [0, 39, 0, 39, 0]


def test_the_thread_shows_a_step_that_reports_nothing(shown: list[State]) -> None:
    with Reporter("export", shown.append, first=0.01, seconds=0.01) as steps:
        wait_for(lambda: len(shown) > 1)
        assert shown[0].step == "starting"
        steps("calibrate", 1, 4, "head")
        count = len(shown)
        wait_for(lambda: len(shown) > count + 2)
    last = shown[-1]
    assert (last.step, last.what, last.fraction) == ("calibrate", "head", 0.25)
    assert last.remaining_s is not None
    assert last.elapsed_s > 0
    if sys.platform == "linux":
        assert last.memory_bytes is not None


def test_the_first_line_comes_before_the_others(shown: list[State]) -> None:
    with Reporter("export", shown.append, first=0.01, seconds=60):
        wait_for(lambda: len(shown) > 0)
        time.sleep(0.05)
    assert len(shown) == 1


def test_steps_that_take_turns_keep_their_estimates(shown: list[State]) -> None:
    with Reporter("export", shown.append, first=60, seconds=60) as steps:
        steps("calibrate", 0, 4)
        time.sleep(0.05)
        steps("weights", 1, 4)
        steps("calibrate", 1, 4)
        left = steps.state().remaining_s
    assert left is not None
    assert left >= 0.15


def test_nothing_is_shown_after_the_command_or_its_error(shown: list[State]) -> None:
    cleared: list[int] = []
    reporter = Reporter(
        "pack", shown.append, first=0.01, seconds=0.01, clear=lambda: cleared.append(len(shown))
    )
    wait_for(lambda: bool(shown))
    with pytest.raises(KeyError), reporter:
        raise KeyError
    time.sleep(0.05)
    assert cleared == [len(shown)]


@pytest.mark.parametrize(
    ("as_json", "pattern"),
    [(False, r"^export: calibrate, 25%, about .*, head$"), (True, r'^{"event": "progress", .*}$')],
)
def test_lines_are_printed_without_a_terminal(
    as_json: bool,
    pattern: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ortolan.cli.progress.FIRST_LINE_S", 0.01)
    monkeypatch.setattr("ortolan.cli.progress.LINE_S", 0.01)
    written: list[str] = []

    def is_written() -> bool:
        written.append(capsys.readouterr().err)
        return "head" in written[-1]

    with running("export", as_json=as_json), progress() as steps:
        steps("calibrate", 1, 4, "head")
        wait_for(is_written)
    assert re.search(pattern, "".join(written), re.MULTILINE)


def test_a_terminal_gets_one_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ortolan.cli.progress.DRAW_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with running("verify", as_json=False), progress() as steps:
        steps("verify", 3, 4)
        time.sleep(0.1)
    written = capsys.readouterr().err
    assert "75%" in written
    assert "\n" not in written
    assert written.rsplit("\r", 2)[1].strip() == ""


# --- prompts ------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(patch: pytest.MonkeyPatch, *, delay_s: float = 0.0) -> Screen:
    """In place of stderr; not in a fixture, after which pytest sets stderr once more."""
    screen = Screen()
    patch.setattr(sys, "stderr", screen)
    patch.setattr(module, "PROMPT_FIRST_S", delay_s)
    patch.setattr(module, "PROMPT_DRAW_S", 0.0)
    return screen


def test_line_goes_on_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, done = terminal(monkeypatch), 64
    with prompt_progress(lambda: (done, 2000)) as end:
        wait_for(lambda: "\rreading the prompt: 64 of 2,000 tokens, " in screen.getvalue())
        done = 1280
        wait_for(lambda: "\rreading the prompt: 1,280 of 2,000 tokens, " in screen.getvalue())
        end()
        shown = screen.getvalue()
        end()
    assert re.search(r"\rreading the prompt: 64 of 2,000 tokens, \d+ s *\r", shown)
    assert re.search(r"\r +\r$", shown)
    assert screen.getvalue() == shown


def test_line_is_shorter_than_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "20")
    with prompt_progress(lambda: (64, 2000)):
        wait_for(lambda: "\rreading the prompt:" in screen.getvalue())
    assert max(map(len, screen.getvalue().split("\r"))) == 19


def test_nothing_is_drawn_without_a_terminal_or_for_a_short_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PROMPT_FIRST_S", 0.0)
    with prompt_progress(lambda: (0, 64)):
        time.sleep(0.02)
    assert capsys.readouterr().err == ""
    screen = terminal(monkeypatch, delay_s=60.0)
    with prompt_progress(lambda: (0, 64)):
        pass
    assert screen.getvalue() == ""

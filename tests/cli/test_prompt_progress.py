"""The progress of a prompt is drawn on a terminal alone, and removed."""

import io
import re
import sys
import time

import pytest

from ortolan.cli import prompt_progress
from ortolan.cli.prompt_progress import PromptProgress


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(patch: pytest.MonkeyPatch, *, delay_s: float = 0.0) -> Screen:
    """In place of stderr; not in a fixture, after which pytest sets stderr once more."""
    screen = Screen()
    patch.setattr(sys, "stderr", screen)
    patch.setattr(prompt_progress, "DELAY_S", delay_s)
    patch.setattr(prompt_progress, "INTERVAL_S", 0.0)
    return screen


def wait_for(text: str, screen: Screen) -> None:
    end = time.monotonic() + 60
    while text not in screen.getvalue():
        assert time.monotonic() < end, screen.getvalue()
        time.sleep(0.001)


def test_line_goes_on_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, done = terminal(monkeypatch), 64
    with PromptProgress(lambda: (done, 2000)) as line:
        wait_for("\rreading the prompt: 64 of 2,000 tokens, ", screen)
        done = 1280
        wait_for("\rreading the prompt: 1,280 of 2,000 tokens, ", screen)
        line.end()
        shown = screen.getvalue()
        line.end()
    assert re.search(r"\rreading the prompt: 64 of 2,000 tokens, \d+ s *\r", shown)
    assert re.search(r"\r +\r$", shown)
    assert screen.getvalue() == shown


def test_line_is_shorter_than_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "20")
    with PromptProgress(lambda: (64, 2000)):
        wait_for("\rreading the prompt:", screen)
    assert max(map(len, screen.getvalue().split("\r"))) == 19


def test_short_wait_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, delay_s=60.0)
    with PromptProgress(lambda: (0, 64)):
        pass
    assert screen.getvalue() == ""


def test_nothing_is_drawn_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prompt_progress, "DELAY_S", 0.0)
    with PromptProgress(lambda: (0, 64)):
        time.sleep(0.02)
    assert capsys.readouterr().err == ""

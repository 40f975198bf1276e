"""How lines become questions and entries of the history. Pastes are tested in test_command.py."""

import builtins
import io
import sys
from pathlib import Path

import pytest

from ortolan.cli.chat import questions as module
from ortolan.cli.chat.history import add_to_history, read_history


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Readline:
    """Stands in for the module of GNU readline."""

    def __init__(self, about: str) -> None:
        self.__doc__ = about
        self.history: list[str] = []
        self.settings: list[str] = []
        self.add_history = self.history.append
        self.parse_and_bind = self.settings.append

    def set_startup_hook(self, hook: object) -> None:
        pass

    def set_auto_history(self, enabled: bool) -> None:
        assert not enabled

    def get_line_buffer(self) -> str:
        return ""


class Typist:
    """Types at a terminal, with a history in a folder of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = patch
        self.said: list[str] = []
        self.prompts: list[str] = []
        self.readline = Readline("GNU readline")
        for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(folder))

    def type(self, *lines: str, about: str = "GNU readline", history: bool = True) -> list[str]:
        """Type lines in a new session, and return the questions that they are."""
        rest, self.said, self.prompts, self.readline = iter(lines), [], [], Readline(about)

        def line(prompt: str) -> str:
            self.prompts.append(prompt)
            try:
                return next(rest)
            except StopIteration:
                raise EOFError from None

        self._patch.setattr(sys, "stdin", Tty())
        self._patch.setattr(sys, "stdout", Tty())
        self._patch.setitem(sys.modules, "readline", self.readline)
        self._patch.setattr(builtins, "input", line)
        self._patch.setattr(module, "_typed_ahead", str)
        read, questions = module.question_reader(keeps_history=history, tell=self.said.append), []
        while True:
            try:
                questions.append(read())
            except EOFError:
                return questions


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typist:
    return Typist(monkeypatch, tmp_path)


def test_lines_blocks_and_backslashes_are_questions(typist: Typist) -> None:
    lines = ["one", "two\\", "three", '"""', "four\\", "", "five", '"""', "pasted\nlines\n", '"""']
    assert typist.type(*lines) == ["one", "two\nthree", "four\\\n\nfive", "pasted\nlines"]
    assert typist.prompts == ["> ", "> ", ". ", "> ", ". ", ". ", ". ", ". ", "> ", "> ", ". "]


@pytest.mark.skipif(sys.platform == "win32", reason="has no readline")
def test_questions_are_recalled_in_the_next_chat(typist: Typist, tmp_path: Path) -> None:
    path = tmp_path / "ortolan" / "chat_history"
    typist.type("one", "", "two\\", "three")
    assert read_history(path) == ["one", "two\nthree"]
    typist.type()
    assert typist.readline.history == ["one", "two\nthree"]
    typist.type("four", history=False)
    assert typist.readline.history == ["four"]
    assert read_history(path) == ["one", "two\nthree"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no readline")
def test_an_invalid_history_is_reported_once_and_kept(typist: Typist, tmp_path: Path) -> None:
    path = tmp_path / "ortolan" / "chat_history"
    add_to_history(path, "one")
    path.write_text("something else")
    assert typist.type("two", "three") == ["two", "three"]
    assert len(typist.said) == 1
    assert typist.said[0].startswith(str(path))
    assert path.read_text() == "something else"


@pytest.mark.parametrize(
    ("about", "terminal", "reads_pastes"),
    [
        ("GNU readline", "xterm", True),
        ("GNU readline", "dumb", False),
        ("using libedit", "xterm", False),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="has no readline")
def test_a_terminal_without_pastes_says_so(
    about: str,
    terminal: str,
    reads_pastes: bool,
    typist: Typist,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", terminal)
    typist.type(about=about)
    assert typist.readline.settings == ["set enable-bracketed-paste on"] * reads_pastes
    assert any("Each pasted line" in text for text in typist.said) != reads_pastes

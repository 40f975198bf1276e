"""Reads the questions and commands of `ortolan chat`, typed or piped."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ortolan import runtime
from ortolan.cli.chat.history import add_to_history, history_path, read_history
from ortolan.errors import OrtolanError

BLOCK = '"""'
"""A line that begins and ends a question of several lines."""


def question_reader(*, keeps_history: bool, tell: Callable[[str], None]) -> Callable[[], str]:
    """Prepare standard input and return a function that reads the next question or command.

    That function raises `EOFError` at the end, `KeyboardInterrupt` for Ctrl-C at an empty prompt,
    and `InputError` for input that is not UTF-8.

    With GNU readline, a paste is one question however many lines it has, and the arrow keys recall
    entries of earlier chats. Without it (on Windows, and where Python is linked with libedit) a
    paste is read line by line.
    """
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")
        return lambda: _read("", "")
    readline = _readline()
    if readline is None or not _enable_pastes(readline):
        tell(f"Each pasted line is a question here; put {BLOCK} before and after a longer one.")
    if readline is None:
        return lambda: _read("> ", ". ")
    path = _load_history(readline, tell) if keeps_history else None

    def read() -> str:
        nonlocal path
        typed = iter([_typed_ahead()])  # for the first line only
        readline.set_startup_hook(lambda: readline.insert_text(next(typed, "")))
        text = _read("> ", ". ").rstrip("\n")
        if text.strip():
            readline.add_history(text)
            if path is not None:
                try:
                    add_to_history(path, text)
                except OrtolanError as error:
                    tell(str(error))
                    path = None
        return text

    return read


def _readline() -> ModuleType | None:
    """Import readline, so that `input` edits lines with it; `None` where it cannot."""
    if os.name == "nt" or not sys.stdout.isatty():  # pyreadline lacks functions used here
        return None
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)  # question_reader adds questions of several lines as one
    return readline


def _enable_pastes(readline: ModuleType) -> bool:
    """Read a paste as one question; `False` where that is impossible."""
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # off in Python since 3.10
    return True


def _load_history(readline: ModuleType, tell: Callable[[str], None]) -> Path | None:
    """Add the entries of earlier chats; return the file, or `None` if it cannot be read."""
    path = history_path()
    try:
        entries = read_history(path)
    except OrtolanError as error:
        tell(str(error))
        return None
    for entry in entries:
        readline.add_history(entry)
    return path


def _read(prompt: str, next_prompt: str) -> str:
    """Read a question: a line, several lines that end with a backslash, or a block."""
    lines: list[str] = []
    is_block = False
    while True:
        try:
            line = input(next_prompt if lines or is_block else prompt)
        except EOFError:
            if prompt:
                print()
            if not lines:
                raise
            return "\n".join(lines)
        except UnicodeDecodeError as error:
            raise runtime.InputError(
                f"Standard input must be UTF-8 text (got byte 0x{error.object[error.start]:02x})."
            ) from error
        except KeyboardInterrupt:
            if not prompt or not (lines or is_block or _typed()):
                raise
            print()
            lines, is_block = [], False
            continue
        if line.strip() == BLOCK and (is_block or not lines):
            if is_block:
                return "\n".join(lines)
            is_block = True
        elif is_block:
            lines.append(line)
        elif line.endswith("\\"):
            lines.append(line.removesuffix("\\"))
        else:
            return "\n".join([*lines, line])


def _typed_ahead() -> str:
    """Lines that were typed or pasted during an answer.

    The terminal does not mark pastes then, so the lines wait at the prompt until Enter is pressed.
    """
    typed = b""
    with contextlib.suppress(OSError):  # if the terminal is gone, `input` raises
        while select.select([sys.stdin], [], [], 0)[0]:
            lines = os.read(sys.stdin.fileno(), 4096)
            if not lines:
                break
            typed += lines
    return typed.decode(errors="replace").strip("\n")


def _typed() -> str:
    """The line that Ctrl-C interrupted."""
    readline = sys.modules.get("readline")
    return "" if readline is None else str(readline.get_line_buffer())

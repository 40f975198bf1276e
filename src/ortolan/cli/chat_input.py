"""What is typed or piped into `ortolan chat`."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ortolan.cli.chat_history import add_to_history, history_path, read_history
from ortolan.errors import OrtolanError

BLOCK = '"""'
"""Alone on a line, it begins and ends a question of several lines."""


def questions(*, keeps_history: bool, tell: Callable[[str], None]) -> Callable[[], str]:
    """Prepare standard input, and return what reads the next question or command.

    At a terminal with GNU readline, a paste is one question however many lines it has, and what
    was typed in earlier sessions comes back with the arrow keys. Without GNU readline (Windows, and
    where Python is linked with libedit) a terminal hands over a paste line by line.

    Args:
        keeps_history: whether what is typed is kept for later sessions.
        tell: says what does not work; the chat goes on without it.

    Returns:
        A function that reads; it raises `EOFError` at the end, `KeyboardInterrupt` for Ctrl-C at
        an empty prompt, and `InputError` for bytes that are not UTF-8.
    """
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")
        return lambda: _read("", "")
    readline = _readline()
    if readline is None or not _takes_pastes(readline):
        tell(f"Each line that you paste is a question here; put {BLOCK} before and after several.")
    if readline is None:
        return lambda: _read("> ", ". ")
    path = _load_history(readline, tell) if keeps_history else None

    def read() -> str:
        nonlocal path
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
    """The module of the standard library; `input` edits lines with it once it is imported."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)  # a question of several lines is one entry
    return readline


def _takes_pastes(readline: ModuleType) -> bool:
    """Let a pasted text be inserted as a whole, where the library and the terminal can do so."""
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # off in Python since 3.10
    return True


def _load_history(readline: ModuleType, tell: Callable[[str], None]) -> Path | None:
    """Let the arrow keys find what was typed in earlier sessions; `None` if that fails."""
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
    """Read a question: a line, several that a backslash joins, or a block."""
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
            raise _no_text(error) from error
        except KeyboardInterrupt:
            if not prompt or not (lines or is_block or _typed()):
                raise
            print()
            lines, is_block = [], False
            continue
        if line.strip() == BLOCK:
            if is_block:
                return "\n".join(lines)
            if not lines:
                is_block = True
                continue
        if is_block:
            lines.append(line)
        elif line.endswith("\\"):
            lines.append(line.removesuffix("\\"))
        else:
            return "\n".join([*lines, line])


def _typed() -> str:
    """What stood at the prompt when it was interrupted."""
    readline = sys.modules.get("readline")
    return "" if readline is None else str(readline.get_line_buffer())


def _no_text(error: UnicodeDecodeError) -> OrtolanError:
    from ortolan.runtime import InputError

    return InputError(
        f"standard input: expected UTF-8 text, got byte 0x{error.object[error.start]:02x}. "
        "Convert the input."
    )

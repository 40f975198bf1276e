"""Standard streams that print control characters as escapes.

Labels, names and generated text are untrusted. An escape sequence in them could hide a line of the
terminal, or imitate one.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

_CONTROL = (*range(0x20), *range(0x7F, 0xA0))
# Characters that change the display order of others (Unicode Standard Annex 9)
_DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS = (0x2028, 0x2029)

_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROL, *_DIRECTION, *_SEPARATORS)
    if chr(code) not in "\n\t"
}
# a progress bar may return to the start of its line
_ESCAPES_OF_PROGRESS = {code: text for code, text in _ESCAPES.items() if chr(code) != "\r"}


def visible(text: str) -> str:
    """Escape the control characters of a text."""
    return text.translate(_ESCAPES)


class _Guarded:
    """A text stream that escapes control characters, and what it cannot encode."""

    def __init__(self, stream: TextIO, escapes: dict[int, str]) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._stream, self._escapes = stream, escapes

    def write(self, text: str) -> int:
        self._stream.write(text.translate(self._escapes))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by guarded streams for the duration of a command."""
    out, err = _Guarded(sys.stdout, _ESCAPES), _Guarded(sys.stderr, _ESCAPES_OF_PROGRESS)
    with redirect_stdout(out), redirect_stderr(err):
        yield

"""Standard streams that print control characters as escapes.

Labels, names and generated text are untrusted. An escape sequence in them could hide a line of the
terminal, or imitate one.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

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


class _Guarded(io.TextIOWrapper):
    """A text stream that escapes control characters."""

    escapes: dict[int, str]

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped."""
        super().write(text.translate(self.escapes))
        return len(text)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by guarded streams for the duration of a command.

    Characters that cannot be encoded are escaped too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = _guarded(sys.stdout, _ESCAPES)
    sys.stderr = _guarded(sys.stderr, _ESCAPES_OF_PROGRESS)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _Guarded):
                stream.detach()  # or it would close the original's buffer
        sys.stdout, sys.stderr = before


def _guarded(stream: TextIO, escapes: dict[int, str]) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    guarded = _Guarded(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    guarded.escapes = escapes
    return guarded

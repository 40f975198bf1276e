"""Which characters of a rendered prompt come from the user, and which from the template.

A template cannot tell. So it is rendered again with a mark before and after each of the user's
texts. Marks are characters that occur nowhere else, so they cannot be forged. They are placed
inside the white space around a text, because templates trim it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ortolan.runtime.chat.messages import is_name

_CANDIDATES = range(0x20000, 0x2A6D6)
"""Caseless characters that Python prints unescaped: rare Chinese ones."""


class Span(NamedTuple):
    """Characters `start` to `end - 1` of a text."""

    start: int
    end: int


class Marks(NamedTuple):
    """The two mark characters."""

    start: str
    end: str

    @classmethod
    def absent_from(cls, texts: Iterable[str]) -> "Marks":
        """Choose marks that occur in none of the texts."""
        present = frozenset(c for text in texts if not text.isascii() for c in text)
        absent = (chr(code) for code in _CANDIDATES if chr(code) not in present)
        return cls(next(absent), next(absent))


def marked(value: Any, marks: Marks) -> Any:
    """Copy plain data with marks inside its strings.

    Identifiers, such as roles and types, stay as they are: templates compare them, and they cannot
    contain a control token.
    """
    if isinstance(value, str):
        text = value.strip()
        if not text or is_name(text):
            return value
        start = value.index(text)
        return f"{value[:start]}{marks.start}{text}{marks.end}{value[start + len(text) :]}"
    if isinstance(value, dict):
        return {key: marked(item, marks) for key, item in value.items()}
    if isinstance(value, list):
        return type(value)(marked(item, marks) for item in value)
    return value


def unmarked(text: str, marks: Marks) -> tuple[str, list[Span]] | None:
    """Return a text without its marks and the spans between them; `None` if any mark is lost."""
    parts: list[str] = []
    spans: list[Span] = []
    length = start = 0
    inside = False
    for part, mark in _parts(text, marks):
        parts.append(part)
        length += len(part)
        if mark == marks.start and not inside:
            start, inside = length, True
        elif mark == marks.end and inside:
            spans.append(Span(start, length))
            inside = False
        elif mark:
            return None
    return None if inside else ("".join(parts), spans)


def _parts(text: str, marks: Marks) -> Iterator[tuple[str, str]]:
    """Split a text at its marks; each part comes with the mark after it."""
    begin = 0
    for index, letter in enumerate(text):
        if letter in marks:
            yield text[begin:index], letter
            begin = index + 1
    yield text[begin:], ""

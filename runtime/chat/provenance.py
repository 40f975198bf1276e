"""Which characters of a rendered prompt the user wrote, and which the template.

A template cannot say. So it is rendered a second time with a mark before and after each text of
the user. The marks are characters that occur nowhere else, so nobody can forge one. They stand
inside the white space around a text, since templates trim it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ortolan.runtime.chat.messages import is_name

__all__ = ["Marks", "Span", "marked", "unmarked"]

_CANDIDATES = range(0x20000, 0x2A6D6)
"""Characters without case that Python prints as they are: rare Chinese ones."""


class Span(NamedTuple):
    """Characters of a text, from `start` to before `end`."""

    start: int
    end: int


class Marks(NamedTuple):
    """The two characters."""

    start: str
    end: str

    @classmethod
    def absent_from(cls, texts: Iterable[str]) -> "Marks":
        """Marks that none of the texts has."""
        present = frozenset(c for text in texts if not text.isascii() for c in text)
        absent = (chr(code) for code in _CANDIDATES if chr(code) not in present)
        return cls(next(absent), next(absent))


def marked(value: Any, marks: Marks) -> Any:
    """A copy of plain data with marks inside its strings.

    Identifiers, such as roles and types, stay as they are: templates compare them, and they hold
    no control token.
    """
    if isinstance(value, str):
        text = value.strip()
        if not text or is_name(text):
            return value
        start = value.index(text)
        return f"{value[:start]}{marks.start}{text}{marks.end}{value[start + len(text) :]}"
    if isinstance(value, dict):
        return {key: marked(each, marks) for key, each in value.items()}
    if isinstance(value, list):
        return type(value)(marked(each, marks) for each in value)
    return value


def unmarked(text: str, marks: Marks) -> tuple[str, list[Span]] | None:
    """A text without its marks, and what stood between them; None where some marks were lost."""
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
    """The parts of a text between marks, each with the mark after it."""
    begin = 0
    for index, letter in enumerate(text):
        if letter in marks:
            yield text[begin:index], letter
            begin = index + 1
    yield text[begin:], ""

"""Word wrap for text that arrives in pieces."""

import unicodedata
from collections.abc import Callable

_FENCES = ("```", "~~~")
_HANGUL = range(0xAC00, 0xD800)
_JOINER = "\u200d"
_STICKS_TO_PREVIOUS = frozenset({"Pe", "Pf", "Po", "Mn", "Me", "Cf", "Sk"})
_STICKS_TO_NEXT = frozenset({"Ps", "Pi"})


class WordWrap:
    """Breaks lines between words, and between ideographs.

    Fenced code and words longer than a line are not broken, so that they can be copied. A word is
    held back until it ends or exceeds a line.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0
        self._space = ""
        self._word = ""
        self._last = ""  # last character of the word, printed or not
        self._is_line_start = True
        self._is_placed = False  # the beginning of a long word is printed
        self._fence = ""

    def feed(self, text: str) -> str:
        """Add text and return the part to print now."""
        return "".join(map(self._take, text))

    def flush(self) -> str:
        """Return the text that was held back."""
        return self._end_word() + self._end_space()

    def _take(self, character: str) -> str:
        if character == "\n":
            held = self.flush()
            self._column, self._is_line_start = 0, True
            return f"{held}\n"
        if character in " \t":
            held = self._end_word()
            self._space += character
            return held
        held = self._end_word() if _may_break(self._last, character) else ""
        self._word, self._last = self._word + character, character
        if self._is_placed or _end(0, self._word) > self._columns():
            held += self._place()
            self._is_placed = True
        return held

    def _end_word(self) -> str:
        placed = self._place() if self._word else ""
        self._is_placed, self._last = False, ""
        return placed

    def _end_space(self) -> str:
        """The spaces at the end of a line, if they fit."""
        space = self._space if _end(self._column, self._space) <= self._columns() else ""
        self._column, self._space = _end(self._column, space), ""
        return space

    def _place(self) -> str:
        columns, before = self._columns(), self._space
        if self._is_line_start:
            self._note_fence()
        end = _end(_end(self._column, before), self._word)
        if end > columns and self._column > 0 and not self._fence and not self._is_placed:
            before, end = "\n", _end(0, self._word)
        placed = before + self._word
        # the terminal breaks a word longer than a line
        self._column = (end - 1) % columns + 1
        self._space, self._word, self._is_line_start = "", "", False
        return placed

    def _note_fence(self) -> None:
        fence = self._word[:3]
        if self._fence:
            self._fence = "" if fence == self._fence else self._fence
        elif fence in _FENCES:
            self._fence = fence


def _may_break(last: str, character: str) -> bool:
    """Whether a line may break between two characters that are not spaces."""
    if last in ("", _JOINER):
        return False
    return (
        (_is_ideograph(last) or _is_ideograph(character))
        and unicodedata.category(character) not in _STICKS_TO_PREVIOUS
        and unicodedata.category(last) not in _STICKS_TO_NEXT
    )


def _is_ideograph(character: str) -> bool:
    """Whether a character is of a script without spaces. Korean has spaces."""
    return _width(character) == 2 and ord(character) not in _HANGUL


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _end(column: int, text: str) -> int:
    """The column after a text that starts at `column`."""
    for character in text:
        column += 8 - column % 8 if character == "\t" else _width(character)
    return column

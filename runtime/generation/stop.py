"""Stop texts in a stream of text.

Text is taken a character at a time, so the result does not depend on how a stream cuts it into
pieces: the stop text that ends first wins, the longest one where several end together. What may
still become a stop text is held back, nothing else is.

Knows text. Does not know tokens, nor why a generation ends otherwise.
"""

from collections.abc import Sequence

from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.limits import MAX_STOP_TEXT_BYTES, MAX_STOP_TEXTS

__all__ = ["StopMatcher", "checked_stop"]


class StopMatcher:
    """Finds the first of some stop texts in a text that comes in pieces.

    Work for a piece grows with its length and the number of stop texts, not with their length.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Prepare to look for stop texts.

        Args:
            texts: the stop texts; none stops nothing.

        Raises:
            InputError: too many texts, or one that is empty, too long, or not text.
        """
        self._searches = [_Search(text) for text in checked_stop(texts)]
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Take the next piece of the text.

        Returns:
            The text that can be shown now, and whether a stop text was found. From then on
            nothing more is shown; the stop text and what follows it never are.
        """
        if self._stopped or not self._searches:
            return ("", True) if self._stopped else (piece, False)
        text = self._held + piece
        for end, letter in enumerate(piece, start=len(self._held) + 1):
            found = [search.length for search in self._searches if search.advance(letter)]
            if found:
                self._held = ""
                self._stopped = True
                return text[: end - max(found)], True
        shown = len(text) - max(search.matched for search in self._searches)
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """Return the text still held back, at the end of the text; empty after a stop."""
        held, self._held = self._held, ""
        for search in self._searches:
            search.matched = 0
        return held


class _Search:
    """How much of one stop text the text so far ends with (Knuth, Morris and Pratt).

    Attributes:
        length: characters of the stop text.
        matched: the longest beginning of the stop text that the text so far ends with.
    """

    __slots__ = ("_borders", "_text", "length", "matched")

    def __init__(self, text: str) -> None:
        self._text = text
        # _borders[n]: the longest proper beginning of text[:n] that text[:n] also ends with
        self._borders = [0, 0]
        self.length = len(text)
        self.matched = 0
        for letter in text[1:]:
            self._borders.append(self._longer(self._borders[-1], letter))

    def advance(self, letter: str) -> bool:
        """Take one character and say whether it completes the stop text."""
        self.matched = self._longer(self.matched, letter)
        return self.matched == self.length

    def _longer(self, matched: int, letter: str) -> int:
        """Return the match that a character makes of a match of `matched` characters."""
        while self._text[matched] != letter:
            if matched == 0:
                return 0
            matched = self._borders[matched]
        return matched + 1


def checked_stop(texts: Sequence[str]) -> Sequence[str]:
    """Return stop texts that are within the limits.

    Raises:
        InputError: too many texts, or one that is empty, too long, or not text.
    """
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise InputError(f"stop: expected a list of texts, got {shown(texts)}. Write it as [text].")
    if len(texts) > MAX_STOP_TEXTS:
        raise InputError(
            f"stop: expected at most {MAX_STOP_TEXTS} texts, got {len(texts)}. Give fewer."
        )
    for text in texts:
        # a lone surrogate cannot be encoded, nor can any model write it
        size_bytes = len(text.encode(errors="surrogatepass"))
        if not 1 <= size_bytes <= MAX_STOP_TEXT_BYTES:
            raise InputError(
                f"stop: expected texts of 1 to {MAX_STOP_TEXT_BYTES} bytes, got {size_bytes}. "
                "Give a shorter or a non-empty one."
            )
    return texts

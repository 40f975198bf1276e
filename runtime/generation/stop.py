"""Stop texts: finds the first of them in text that arrives in pieces.

Text is matched character by character, so the result does not depend on the pieces. The stop text
that ends first wins; the longest, if several end together. Only text that may still become a stop
text is held back.
"""

from collections.abc import Sequence

from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.limits import MAX_STOP_TEXT_BYTES, MAX_STOP_TEXTS


class StopMatcher:
    """Matches stop texts. The work per piece does not depend on the length of the stop texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._searches = [_Search(text) for text in texts]
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Match the next piece."""
        if self._stopped or not self._searches:
            return ("", True) if self._stopped else (piece, False)
        text = self._held + piece
        for end, letter in enumerate(piece, start=len(self._held) + 1):
            lengths = [search.length for search in self._searches if search.advance(letter)]
            if lengths:
                self._held = ""
                self._stopped = True
                return text[: end - max(lengths)], True
        shown = len(text) - max(search.matched for search in self._searches)
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text; empty after a stop."""
        held, self._held = self._held, ""
        for search in self._searches:
            search.matched = 0
        return held


class _Search:
    """Search for one stop text (Knuth, Morris and Pratt).

    `matched` is the length of its longest prefix that the text so far ends with.
    """

    __slots__ = ("_borders", "_text", "length", "matched")

    def __init__(self, text: str) -> None:
        self._text = text
        # _borders[n]: length of the longest proper prefix of text[:n] that is also its suffix
        self._borders = [0, 0]
        self.length = len(text)
        self.matched = 0
        for letter in text[1:]:
            self._borders.append(self._longer(self._borders[-1], letter))

    def advance(self, letter: str) -> bool:
        """Match one character; returns whether it completes the stop text."""
        self.matched = self._longer(self.matched, letter)
        return self.matched == self.length

    def _longer(self, matched: int, letter: str) -> int:
        """Length of the match after a character, from a match of `matched` characters."""
        while self._text[matched] != letter:
            if matched == 0:
                return 0
            matched = self._borders[matched]
        return matched + 1


def checked_stop(texts: Sequence[str]) -> Sequence[str]:
    """Return the stop texts if they are valid."""
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise InputError(f"stop must be a list of texts (got {shown(texts)}).")
    if len(texts) > MAX_STOP_TEXTS:
        raise InputError(f"stop must be at most {MAX_STOP_TEXTS} texts (got {len(texts)}).")
    for text in texts:
        # surrogatepass: a lone surrogate is harmless, since no model can write it
        size_bytes = len(text.encode(errors="surrogatepass"))
        if not 1 <= size_bytes <= MAX_STOP_TEXT_BYTES:
            raise InputError(
                f"A stop text must have 1 to {MAX_STOP_TEXT_BYTES} bytes (got {size_bytes})."
            )
    return texts

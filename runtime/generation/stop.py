"""Stop texts: finds the first of them in text that arrives in pieces.

The result does not depend on the pieces. The stop text that ends first wins; the longest, if
several end together. Only text that may still become a stop text is held back.
"""

from collections.abc import Sequence

from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.limits import MAX_STOP_TEXT_BYTES, MAX_STOP_TEXTS


class StopMatcher:
    """Matches stop texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._longest = max(map(len, texts), default=0)
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Match the next piece: text that can be shown, and whether a stop text is complete."""
        if self._stopped or not self._texts:
            return ("", True) if self._stopped else (piece, False)
        text = self._held + piece
        places = ((text.find(stop), len(stop)) for stop in self._texts)
        # by end, then by start
        matches = [(start + size, start) for start, size in places if start >= 0]
        if matches:
            self._held, self._stopped = "", True
            return text[: min(matches)[1]], True
        shown = len(text)
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            rest = text[start:]
            if any(stop.startswith(rest) for stop in self._texts):
                shown = start
                break
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text; empty after a stop."""
        held, self._held = self._held, ""
        return held


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

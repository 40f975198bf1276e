"""Keys of the objects in a JSON text, so that no object gets one of them twice.

A context-free grammar counts properties, but it cannot see that two have the same key: a parser
keeps one of them, and an object with too few properties passes for one with enough.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import GrammarError

__all__ = ["DistinctKeys", "ObjectKeys"]


class ObjectKeys(NamedTuple):
    """Where a JSON text stands, and the keys so far of each object that is open.

    Equal keys are equal bytes here: the grammar gives every character one spelling.

    Attributes:
        open: of every open object its keys, of every open array `None`, outermost first.
        is_key: whether the next string, or the one that is open, is a key.
        string: of an open string, its bytes if it is a key, else none; `None` outside of strings.
        is_escaped: whether a backslash precedes the next byte of it.
    """

    open: tuple[frozenset[bytes] | None, ...] = ()
    is_key: bool = False
    string: bytes | None = None
    is_escaped: bool = False

    def follow(self, text: bytes) -> "ObjectKeys | None":
        """The same after more of the text; `None` where an object gets a key twice.

        Args:
            text: what comes next; with what came before, the beginning of a JSON text.
        """
        levels, is_key, string, is_escaped = self
        for byte in text:
            if string is not None:
                if byte == 0x22 and not is_escaped:
                    if is_key:
                        keys = levels[-1] or frozenset()
                        if string in keys:
                            return None
                        levels = (*levels[:-1], keys | {string})
                    string, is_key = None, False
                    continue
                is_escaped = byte == 0x5C and not is_escaped
                string += bytes([byte]) if is_key else b""
            elif byte == 0x22:
                string = b""
            elif byte in b"{[":
                is_key = byte == 0x7B
                levels = (*levels, frozenset() if is_key else None)
            elif byte in b"}]":
                levels, is_key = levels[:-1], False
            elif byte == 0x2C:
                is_key = bool(levels) and levels[-1] is not None
        return ObjectKeys(levels, is_key, string, is_escaped)


class DistinctKeys:
    """Keeps the tokens of one JSON text from writing a key of an object twice.

    Args:
        bytes_of: the bytes of a token.
        quoting: the tokens that hold a quote, with their bytes: no other ends a key.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], quoting: Mapping[int, bytes]) -> None:
        self._bytes_of = bytes_of
        self._quoting = quoting
        self._quoting_ids = np.fromiter(quoting, np.intp, len(quoting))
        self._keys = ObjectKeys()

    def rule_out(self, ruled_out_V: NDArray[np.bool_]) -> None:
        """Mark the tokens that would write a key again.

        Args:
            ruled_out_V: `(V,)`, true for tokens that may not come anyway.
        """
        for token in self._quoting_ids[~ruled_out_V[self._quoting_ids]].tolist():
            ruled_out_V[token] = self._keys.follow(self._quoting[token]) is None

    def accept(self, token: int) -> None:
        """Follow a token.

        Raises:
            GrammarError: it writes a key again, where the grammar leaves no choice.
        """
        keys = self._keys.follow(self._bytes_of(token))
        if keys is None:
            raise GrammarError(
                "grammar: expected another key of an object, got one that it has, and no choice. "
                "Lower minProperties, or allow more keys."
            )
        self._keys = keys

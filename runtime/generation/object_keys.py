"""Duplicate keys in JSON text, which a context-free grammar cannot exclude.

It counts properties without comparing their keys. A JSON parser keeps one of two equal keys, so an
object with too few properties would pass `minProperties`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import GrammarError


class ObjectKeys(NamedTuple):
    """Position in a JSON text, and the keys of each open object.

    Equal keys have equal bytes here: the grammar allows one spelling per character.

    Attributes:
        open: keys of each open object, `None` for each open array, outermost first.
        is_key: whether the open string, or the next one, is a key.
        string: bytes of an open key, `b""` in any other string, `None` outside of strings.
        is_escaped: whether a backslash precedes the next byte.
    """

    open: tuple[frozenset[bytes] | None, ...] = ()
    is_key: bool = False
    string: bytes | None = None
    is_escaped: bool = False

    def follow(self, text: bytes) -> "ObjectKeys | None":
        """The position after more text; `None` if an object gets a duplicate key."""
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
    """Rules out tokens that would repeat a key of an object; only those with a quote can end it."""

    def __init__(self, bytes_of: Callable[[int], bytes], quoting: Mapping[int, bytes]) -> None:
        self._bytes_of = bytes_of
        self._quoting = quoting
        self._quoting_ids = np.fromiter(quoting, np.intp, len(quoting))
        self._keys = ObjectKeys()

    def rule_out(self, ruled_out_V: NDArray[np.bool_]) -> None:
        """Mark tokens that would repeat a key, next to those that are ruled out already."""
        for token in self._quoting_ids[~ruled_out_V[self._quoting_ids]].tolist():
            ruled_out_V[token] = self._keys.follow(self._quoting[token]) is None

    def accept(self, token: int) -> None:
        """Advance by a token."""
        keys = self._keys.follow(self._bytes_of(token))
        if keys is None:
            raise GrammarError(
                "The grammar forces a duplicate key in an object. Lower minProperties, or allow "
                "more keys."
            )
        self._keys = keys

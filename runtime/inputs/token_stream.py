"""Text of tokens as they come, each piece final.

The pieces of a stream, joined, are the text that decoding all tokens at once gives. A token can
end inside a character, and some decoders look at neighbours: they drop the space before the
first word, or give up a run of bytes when one of them is wrong. So a stream holds back what
later tokens can still change.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["TokenStream", "open_stream"]

Lookup = Callable[[int], str | None]
"""The string of an id in the vocabulary, `None` for one that adds no text."""

Decode = Callable[[Sequence[int]], str]
"""The text of several ids at once."""


class TokenStream(Protocol):
    """The text of one generation, piece by piece."""

    def push(self, token: int) -> str:
        """Add a token and return the text that has become final, often empty.

        Raises:
            TokenizerError: the id is outside the vocabulary; the stream is unchanged.
        """

    def flush(self) -> str:
        """Return the text still held back; the next token starts a new text."""


def open_stream(decoder: Any, lookup: Lookup, decode: Decode) -> TokenStream:
    """Return the stream that fits a decoder.

    Case 1: bytes only. Characters are put together here, a token at a time.
    Case 2: a token's text depends on the token before it at most, and on the run of byte tokens
        that it stands in. Runs are held back until they end.
    Case 3: anything else may look anywhere, so all text comes with `flush`.
    """
    parts = _parts(decoder)
    types = [part.get("type") for part in parts]
    if types == ["ByteLevel"]:
        return _ByteStream(lookup)
    if types in ([], ["WordPiece"], ["Metaspace"]) or _is_sentencepiece(parts):
        return _LocalStream(lookup, decode, has_bytes="ByteFallback" in types)
    return _WholeStream(lookup, decode)


class _ByteStream:
    """Case 1: tokens spell bytes in the alphabet of GPT-2."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        text = self._lookup(token)
        return "" if text is None else self._utf8.decode(_spelled_bytes(text))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _LocalStream:
    """Case 2: decoding a token after the one before it shows what it adds."""

    def __init__(self, lookup: Lookup, decode: Decode, *, has_bytes: bool) -> None:
        self._lookup = lookup
        self._decode = decode
        self._has_bytes = has_bytes
        self._start()

    def _start(self) -> None:
        self._before: list[int] = []
        self._before_length = 0
        self._held: list[int] = []

    def push(self, token: int) -> str:
        text = self._lookup(token)
        if text is None:
            return ""
        if self._has_bytes and _is_byte_token(text):
            self._held.append(token)
            return ""
        piece = self._decode([*self._before, *self._held, token])[self._before_length :]
        self._before = [token]
        self._before_length = len(self._decode(self._before))
        self._held = []
        return piece

    def flush(self) -> str:
        piece = ""
        if self._held:
            piece = self._decode([*self._before, *self._held])[self._before_length :]
        self._start()
        return piece


class _WholeStream:
    """Case 3: nothing is final before the end."""

    def __init__(self, lookup: Lookup, decode: Decode) -> None:
        self._lookup = lookup
        self._decode = decode
        self._held: list[int] = []

    def push(self, token: int) -> str:
        if self._lookup(token) is not None:
            self._held.append(token)
        return ""

    def flush(self) -> str:
        held, self._held = self._held, []
        return self._decode(held) if held else ""


def _parts(decoder: Any) -> list[dict[str, Any]]:
    """Return the decoders that run one after another; none joins tokens with spaces."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        # a Sequence of nothing joins tokens without spaces, and so does Fuse
        return list(decoder["decoders"]) or [{"type": "Fuse"}]
    return [decoder]


def _is_sentencepiece(parts: Sequence[dict[str, Any]]) -> bool:
    """Whether decoders are those of Llama, Gemma and their like, or some of them, in order.

    They turn ▁ into a space, bytes into characters, join, and strip one space at the start.
    After the join a decoder sees the whole text, so it may be nothing but that strip.
    """
    order = ["Replace", "ByteFallback", "Fuse", "Strip"]
    places = [order.index(part["type"]) if part["type"] in order else -1 for part in parts]
    if -1 in places or places != sorted(set(places)):
        return False
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return all(
        (part == spaces or part["type"] != "Replace")
        and (part.get("start", 0) <= 1 and part.get("stop", 0) == 0)
        for part in parts
    )


def _is_byte_token(text: str) -> bool:
    """Whether the library may take a token for one byte, as <0x0A> is."""
    return text.startswith("<0x") and text.endswith(">") and len(text.encode()) == 6


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable characters for themselves, U+0100 on for the rest."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


_ALPHABET = _byte_alphabet()


def _spelled_bytes(text: str) -> bytes:
    """Return the bytes that a token spells; one with other characters stands for its own text."""
    try:
        return bytes([_ALPHABET[letter] for letter in text])
    except KeyError:
        return text.encode()

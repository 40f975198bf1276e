"""Decodes tokens one at a time into pieces of text that never change.

The pieces join to the text of decoding all tokens at once. A token can end inside a character, and
some decoders look at neighbors: they drop the space before the first word, or replace a run of
bytes if one of them is wrong. So a stream holds back text that later tokens may change.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Lookup = Callable[[int], str | None]
"""Returns the vocabulary entry of an id, or `None` for a token without text."""

Decode = Callable[[Sequence[int]], str]
"""Returns the text of a list of ids."""


class TokenStream(Protocol):
    """Text of one sequence, piece by piece."""

    def push(self, token: int) -> str:
        """Add a token and return the text that is now final, often empty."""

    def flush(self) -> str:
        """Return the text held back; the next token starts a new text."""


def open_stream(decoder: Any, lookup: Lookup, decode: Decode) -> TokenStream:
    """Return the stream for a decoder.

    Case 1: bytes only. Characters are assembled here.
    Case 2: the text of a token depends on the token before it, and on the run of byte tokens
        around it. Runs are held back until they end.
    Case 3: other decoders may look anywhere, so all text comes with `flush`.
    """
    parts = _parts(decoder)
    types = [part.get("type") for part in parts]
    if types == ["ByteLevel"]:
        return _ByteStream(lookup)
    if types in ([], ["WordPiece"], ["Metaspace"]) or _is_sentencepiece(parts):
        has_bytes = "ByteFallback" in types
        return _LocalStream(lookup, decode, lambda text: has_bytes and _is_byte_token(text))
    return _LocalStream(lookup, decode, lambda text: True)


def token_bytes(decoder: Any, text: str) -> bytes:
    """Return the bytes that a vocabulary entry adds to a text, a leading space included."""
    types = [part.get("type") for part in _parts(decoder)]
    if types == ["ByteLevel"]:
        return _spelled_bytes(text)
    if "ByteFallback" in types and _is_byte_token(text):
        return bytes([int(text[3:5], 16)])
    if types == ["WordPiece"]:
        return text.removeprefix("##").encode() if text.startswith("##") else f" {text}".encode()
    return text.replace("▁", " ").encode()


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
    """Cases 2 and 3: the text of a token is what it adds to that of the one before.

    Tokens whose text `is_held` wait for one that is not, or for the end.
    """

    def __init__(self, lookup: Lookup, decode: Decode, is_held: Callable[[str], bool]) -> None:
        self._lookup = lookup
        self._decode = decode
        self._is_held = is_held
        self._start()

    def _start(self) -> None:
        self._before: list[int] = []
        self._before_length = 0
        self._held: list[int] = []

    def push(self, token: int) -> str:
        text = self._lookup(token)
        if text is None:
            return ""
        if self._is_held(text):
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


def _parts(decoder: Any) -> list[dict[str, Any]]:
    """Return the decoders in order; an empty list joins tokens with spaces."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        # an empty Sequence joins tokens without spaces, as Fuse does
        return list(decoder["decoders"]) or [{"type": "Fuse"}]
    return [decoder]


def _is_sentencepiece(parts: Sequence[dict[str, Any]]) -> bool:
    """Whether decoders are a subsequence of those of Llama and Gemma.

    Those turn ▁ into a space and bytes into characters, join, and strip one space at the start.
    Only that strip may follow the join, since it sees the whole text.
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
    """Whether the library may read a token as one byte, such as <0x0A>."""
    return text.startswith("<0x") and text.endswith(">") and len(text.encode()) == 6


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes as themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


BYTE_ALPHABET = _byte_alphabet()
"""Letters that spell bytes in byte-level tokenizers, with their bytes."""


def _spelled_bytes(text: str) -> bytes:
    """Return the bytes that a token spells; any other character means literal text."""
    try:
        return bytes([BYTE_ALPHABET[letter] for letter in text])
    except KeyError:
        return text.encode()

"""What a tokenizer.json may ask for.

The library that runs a tokenizer takes any file that parses. A few hundred bytes can make it
grow a text a billionfold, and then an allocation fails, which ends the whole process and not
just the call. So growth is bounded from the description, before the library sees it.
"""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.limits import MAX_POST_PROCESSOR_BYTES, MAX_TEXT_GROWTH

__all__ = ["Outline", "read_outline"]

_KNOWN = frozenset(
    [
        "BPEDecoder",
        "BertNormalizer",
        "BertPreTokenizer",
        "ByteFallback",
        "ByteLevel",
        "CTC",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Fuse",
        "Lowercase",
        "Metaspace",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Punctuation",
        "Replace",
        "Sequence",
        "Split",
        "Strip",
        "StripAccents",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
        "WordPiece",
    ]
)
"""Types of components whose factor is known: all that the library has."""


class _Model(msgspec.Struct, frozen=True):
    type: Any = None
    continuing_subword_prefix: Any = None


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a tokenizer.json that change text; the vocabulary is passed over.

    Where a key occurs twice the last one counts, here as in the library.
    """

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: Any = None
    model: _Model = _Model()


def read_outline(data: bytes) -> Outline:
    """Read the parts that change text, and check that they cannot exhaust the memory.

    Case 1: `Replace`, `Prepend`, `Precompiled` and `ByteLevel` lengthen text. Their factors
        multiply, and the product is bounded, once for encoding and once for decoding.
    Case 2: of a component of unknown type the factor is unknown too.
    Case 3: a post-processor adds tokens. A short description adds few.
    Case 4: in a BPE model, a prefix for the inside of words is cut off by bytes, whatever stands
        there. Half a character then ends the process. Language models do not use it.

    Raises:
        TokenizerError: the file is not JSON, or a bound is passed.
    """
    try:
        outline = msgspec.json.decode(data, type=Outline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(
            f"tokenizer.json: expected a JSON description, got {error}. Copy the file again."
        ) from error
    _check_growth("encoding", outline.normalizer, outline.pre_tokenizer)
    _check_growth("decoding", outline.decoder)
    size = len(bytes(outline.post_processor))
    if size > MAX_POST_PROCESSOR_BYTES:
        raise TokenizerError(
            f"tokenizer.json: expected a post_processor of at most {MAX_POST_PROCESSOR_BYTES} "
            f"bytes, got {size}. Remove what it does not need."
        )
    if outline.model.continuing_subword_prefix and outline.model.type in (None, "BPE"):
        raise TokenizerError(
            "tokenizer.json: expected a BPE model without continuing_subword_prefix, "
            f"got {outline.model.continuing_subword_prefix!r}. Train the tokenizer without it."
        )
    return outline


def _check_growth(action: str, *parts: Any) -> None:
    """Multiply the factors of all components inside some parts (cases 1 and 2)."""
    growth = 1.0
    for part in parts:
        for component in _components(part):
            growth *= _factor(component)
            if growth > MAX_TEXT_GROWTH:
                raise TokenizerError(
                    f"tokenizer.json: expected {action} to lengthen text at most "
                    f"{MAX_TEXT_GROWTH}-fold, got more. Do not use this tokenizer."
                )


def _components(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every component inside a part."""
    waiting = [] if part is None else [part]
    while waiting:
        component = waiting.pop()
        kind = component.get("type") if isinstance(component, dict) else component
        # the library also takes components without a type, and guesses: they would pass unseen
        if not isinstance(component, dict) or not isinstance(kind, str) or kind not in _KNOWN:
            raise TokenizerError(
                f"tokenizer.json: expected components of known types, got {kind!r}. "
                "Save the file again with a current version of tokenizers."
            )
        yield component
        if kind == "Sequence":
            for value in component.values():
                waiting.extend(value if isinstance(value, list) else [])


def _factor(component: dict[str, Any]) -> float:
    """By how much one component may lengthen a text, in characters, at least 1."""
    match component:
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(pattern)}} if (
            pattern
        ):
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content)  # a regular expression may match between any two characters
        case {"type": "Prepend", "prepend": str(content)}:
            return 1.0 + len(content)  # once for each stretch between added tokens
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_replacement(table)
        case {"type": "ByteLevel"}:
            return 2.0
    return 1.0


def _longest_replacement(table: str) -> float:
    """The longest text of a sentencepiece table: 4 bytes of size, a trie, then texts and NULs."""
    try:
        content = base64.b64decode(table, validate=True)
    except ValueError:
        content = b""
    end = 4 + int.from_bytes(content[:4], "little")
    # the library allocates that size before it looks
    if not 4 <= end <= len(content):
        raise TokenizerError(
            "tokenizer.json: expected a base64 table in precompiled_charsmap, got a torn one. "
            "Copy the file again."
        )
    return float(max(1, *map(len, content[end:].split(b"\0"))))

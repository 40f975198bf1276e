"""Limits on tokenizer.json.

The `tokenizers` library accepts any file that parses. A few hundred bytes can make it grow a text a
billionfold, and the failed allocation then aborts the process. So growth is bounded from the
description, before the library reads it.
"""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.limits import (
    MAX_POST_PROCESSOR_BYTES,
    MAX_TEXT_GROWTH,
    MAX_TOKENIZER_BYTES,
    MAX_UNIGRAM_BYTES,
)

# fmt: off
_KNOWN = frozenset([
    "BPEDecoder", "BertNormalizer", "BertPreTokenizer", "ByteFallback", "ByteLevel", "CTC",
    "CharDelimiterSplit", "Digits", "FixedLength", "Fuse", "Lowercase", "Metaspace", "NFC", "NFD",
    "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Punctuation", "Replace", "Sequence", "Split",
    "Strip", "StripAccents", "UnicodeScripts", "Whitespace", "WhitespaceSplit", "WordPiece",
])
# fmt: on
"""Types of components with a known growth: all that the library has."""


class _Model(msgspec.Struct, frozen=True):
    type: Any = None
    continuing_subword_prefix: Any = None
    unk_token: Any = None
    unk_id: Any = None
    vocab: msgspec.Raw = msgspec.Raw(b"null")


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a tokenizer.json that change text, without the vocabulary.

    The last of duplicate keys counts, as in the library.
    """

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: Any = None
    model: _Model = _Model()


def read_outline(data: bytes) -> Outline:
    """Read the parts that change text, and check that they cannot exhaust memory.

    Case 1: `Replace`, `Prepend`, `Precompiled` and `ByteLevel` lengthen text. The product of their
        factors is bounded, once for encoding and once for decoding.
    Case 2: components of unknown type have an unknown factor and are refused.
    Case 3: a post-processor adds tokens; its description is bounded, since a short one adds few.
    Case 4: the library keeps a tree of the pieces of a Unigram model, about 300 bytes for each byte
        of them; their size is bounded.
    Case 5: a BPE model cuts off `continuing_subword_prefix` by bytes. Half a character aborts the
        process, and language models do not need the prefix, so it is refused.
    """
    if len(data) > MAX_TOKENIZER_BYTES:
        raise TokenizerError(
            f"tokenizer.json may have at most {MAX_TOKENIZER_BYTES} bytes (got {len(data)}). "
            "Remove unused tokens."
        )
    try:
        outline = msgspec.json.decode(data, type=Outline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(
            f"tokenizer.json is not valid JSON: {error}. Copy the file again."
        ) from error
    _check_growth("encoding", outline.normalizer, outline.pre_tokenizer)
    _check_growth("decoding", outline.decoder)
    size = len(bytes(outline.post_processor))
    if size > MAX_POST_PROCESSOR_BYTES:
        raise TokenizerError(
            f"tokenizer.json: the post_processor may have at most {MAX_POST_PROCESSOR_BYTES} bytes "
            f"(got {size}). Remove unused parts."
        )
    _check_pieces(outline.model)
    if outline.model.continuing_subword_prefix and outline.model.type in (None, "BPE"):
        raise TokenizerError(
            "tokenizer.json: a BPE model may not have a continuing_subword_prefix (got "
            f"{outline.model.continuing_subword_prefix!r}). Train the tokenizer without it."
        )
    return outline


def _check_pieces(model: _Model) -> None:
    """Bound the pieces of a Unigram model (case 4). Others do not grow more than 30-fold."""
    if not bytes(model.vocab).startswith(b"["):
        return
    try:
        pieces = msgspec.json.decode(model.vocab, type=list[tuple[str, float]])
    except msgspec.DecodeError:
        return  # the library says what is wrong
    size = sum(len(piece.encode()) for piece, _ in pieces)
    if size > MAX_UNIGRAM_BYTES:
        raise TokenizerError(
            f"tokenizer.json: the pieces of a Unigram model may have at most {MAX_UNIGRAM_BYTES} "
            f"bytes (got {size}). Train the tokenizer with a smaller vocabulary."
        )


def _check_growth(action: str, *parts: Any) -> None:
    """Multiply the factors of all components of some parts (cases 1 and 2)."""
    growth = 1.0
    for part in parts:
        for component in components_of(part):
            growth *= _factor(component)
            if growth > MAX_TEXT_GROWTH:
                raise TokenizerError(
                    f"tokenizer.json: {action} may lengthen text more than {MAX_TEXT_GROWTH}-fold. "
                    "Do not use this tokenizer."
                )


def components_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every component of a part."""
    waiting = [] if part is None else [part]
    while waiting:
        component = waiting.pop()
        kind = component.get("type") if isinstance(component, dict) else component
        # the library guesses the type of components without one: they would bypass the check
        if not isinstance(component, dict) or not isinstance(kind, str) or kind not in _KNOWN:
            raise TokenizerError(
                f"tokenizer.json has a component of the unknown type {kind!r}. Save the file again "
                "with a current version of tokenizers."
            )
        yield component
        if kind == "Sequence":
            for value in component.values():
                waiting.extend(value if isinstance(value, list) else [])


def _factor(component: dict[str, Any]) -> float:
    """Return the factor by which a component may lengthen a text in characters, at least 1."""
    match component:
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(pattern)}} if (
            pattern
        ):
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content)  # a regex may match between any two characters
        case {"type": "Prepend", "prepend": str(content)}:
            return 1.0 + len(content)  # once per stretch between added tokens
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_replacement(table)
        case {"type": "ByteLevel"}:
            return 2.0
    return 1.0


def _longest_replacement(table: str) -> float:
    """Return the longest text of a sentencepiece table: 4 bytes of size, trie, NUL-ended texts."""
    try:
        content = base64.b64decode(table, validate=True)
    except ValueError:
        content = b""
    end = 4 + int.from_bytes(content[:4], "little")
    # the library allocates this size before checking it
    if not 4 <= end <= len(content):
        raise TokenizerError(
            "tokenizer.json: precompiled_charsmap is not a complete base64 table. Copy the file "
            "again."
        )
    return float(max(1, *map(len, content[end:].split(b"\0"))))

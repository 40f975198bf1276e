"""What a tokenizer.json may ask for.

The library that runs a tokenizer takes any file that parses. A few hundred bytes can make it
grow a text a billionfold, and then an allocation fails, which ends the whole process and not
just the call. So growth is bounded from the description, before the library sees it.

Knows the components that lengthen text. Does not know vocabularies, nor whether a file is
complete: the library says that.
"""

import base64
import binascii
from typing import Any

import msgspec

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.limits import MAX_POST_PROCESSOR_BYTES, MAX_TEXT_GROWTH

__all__ = ["Outline", "read_outline"]


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a tokenizer.json that change text; the vocabulary is passed over.

    Where a key occurs twice the last one counts, here as in the library.
    """

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: Any = None


def read_outline(data: bytes) -> Outline:
    """Read the parts that change text, and check that they cannot exhaust the memory.

    Case 1: `Replace`, `Prepend`, `Precompiled` and `ByteLevel` lengthen text. Their factors
        multiply, and the product is bounded, once for encoding and once for decoding.
    Case 2: a post-processor adds tokens. A short description adds few.

    Raises:
        TokenizerError: the file is not JSON, or a bound is passed.
    """
    try:
        outline = msgspec.json.decode(data, type=Outline)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TokenizerError(
            f"tokenizer.json: expected a JSON description, got {error}. Copy the file again."
        ) from error
    _check_growth("encoding", [outline.normalizer, outline.pre_tokenizer])
    _check_growth("decoding", outline.decoder)
    size = len(bytes(outline.post_processor))
    if size > MAX_POST_PROCESSOR_BYTES:
        raise TokenizerError(
            f"tokenizer.json: expected a post_processor of at most {MAX_POST_PROCESSOR_BYTES} "
            f"bytes, got {size}. Remove what it does not need."
        )
    return outline


def _check_growth(action: str, part: Any) -> None:
    """Multiply the factors of all components inside a part (case 1)."""
    growth = 1.0
    waiting = [part]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            growth *= _factor(item)
            waiting.extend(item.values())
        if growth > MAX_TEXT_GROWTH:
            raise TokenizerError(
                f"tokenizer.json: expected {action} to lengthen text at most "
                f"{MAX_TEXT_GROWTH}-fold, got more. Do not use this tokenizer."
            )


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
    except binascii.Error as error:
        raise TokenizerError(
            "tokenizer.json: expected base64 in precompiled_charsmap, got something else. "
            "Copy the file again."
        ) from error
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return float(max(1, *map(len, texts.split(b"\0"))))

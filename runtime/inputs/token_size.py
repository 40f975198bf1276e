"""How much of a text one token stands for, which tells of texts that are surely too long."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import tokenizers

from ortolan.runtime.inputs.token_stream import BYTE_ALPHABET
from ortolan.runtime.inputs.tokenizer_file import Outline, components_of


@dataclass(frozen=True, slots=True)
class TokenSize:
    """How much of a text one token stands for.

    Attributes:
        most: characters at most; infinity without a bound.
        dropped: characters that become no tokens.
    """

    most: float
    dropped: Collection[str] = ()

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Whether a text surely has more tokens."""
        fitting = max_tokens * self.most
        # counting is slower than the length
        return len(text) > fitting and len(text) - sum(map(text.count, self.dropped)) > fitting


_SHRINKS: dict[str, float] = {
    # composed characters have at most four code points (Unicode Standard Annex 15)
    "NFC": 4.0,
    "NFKC": 4.0,
    **dict.fromkeys(
        [
            *("NFD", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Digits", "Metaspace"),
            *("UnicodeScripts", "FixedLength", "Sequence"),
        ],
        1.0,
    ),
}
"""Factors by which components may shorten a text; others can make all of it vanish."""


def token_size(library: tokenizers.Tokenizer, outline: Outline) -> TokenSize:
    """Return how much of a text one token of a tokenizer stands for."""
    components = [*components_of(outline.normalizer), *components_of(outline.pre_tokenizer)]
    model = library.model
    vocabulary = library.get_vocab(with_added_tokens=True)
    most = math.prod(map(_shrinks, components), start=float(max(map(len, vocabulary), default=1)))
    added = library.get_added_tokens_decoder().values()
    takes_white_space = any(token.lstrip or token.rstrip for token in added)
    # other models turn long words into one unknown token
    if takes_white_space or not isinstance(model, tokenizers.models.BPE):
        return TokenSize(math.inf)
    if any(component["type"] == "ByteLevel" for component in components):
        missing = [byte for letter, byte in BYTE_ALPHABET.items() if letter not in vocabulary]
        # without the first byte of a character, the others remain
        missing = [byte for byte in missing if byte < 0xC0]
        are_controls = all(byte < 0x20 or byte == 0x7F for byte in missing)
        return TokenSize(most if are_controls else math.inf, [*map(chr, missing)])
    has_bytes = model.byte_fallback and all(f"<0x{n:02X}>" in vocabulary for n in range(256))
    is_unknown_counted = model.unk_token is not None and not model.fuse_unk
    return TokenSize(most if has_bytes or is_unknown_counted else math.inf)


def _shrinks(component: dict[str, Any]) -> float:
    match component:
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(pattern)}} if (
            content
        ):
            return max(1.0, len(pattern) / len(content))
        case {"type": "Split" | "Punctuation", "behavior": str(behavior)}:
            return math.inf if behavior == "Removed" else 1.0
        case {"type": str(kind)}:
            return _SHRINKS.get(kind, math.inf)
    return math.inf

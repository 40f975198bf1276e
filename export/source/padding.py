"""The padding of texts that an encoder reads like other tokens (SigLIP).

Configs often leave out its id or have another one, so it is that of the tokenizer, as in
transformers.
"""

from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import read_side
from ortolan.runtime.inputs.tokenizer import Tokenizer

CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"


class _Content(msgspec.Struct):
    """A token with its properties."""

    content: str


class _Tokens(msgspec.Struct):
    """The key that is read."""

    pad_token: str | _Content | None = None


def padding_id(tokenizer: Tokenizer | None, folder: Path | None, own: int | None) -> int:
    """Id of the padding."""
    text = None if tokenizer is None or folder is None else _pad_token(folder)
    if text is not None and tokenizer is not None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            raise OptionError(
                f"{CONFIG}: pad_token must be one token of tokenizer.json (got {text[:40]!r}, "
                f"which is {len(ids)}). Correct it."
            )
        return ids[0]
    if own is None:
        raise OptionError(
            f"This encoder reads padding, and neither {CONFIG} nor config.json names its token. "
            "Set pad_token_id."
        )
    return own


def _pad_token(folder: Path) -> str | None:
    """The padding that the first of two files names; older folders have it in the second."""
    for name in (CONFIG, SPECIAL):
        token = read_side(folder / name, _Tokens).pad_token
        if token is not None:
            return token if isinstance(token, str) else token.content
    return None

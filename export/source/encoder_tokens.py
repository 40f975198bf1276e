"""Padding and token types of an encoder of texts, which the files of its tokenizer decide."""

from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import read_side
from ortolan.runtime.inputs.tokenizer import Tokenizer

CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"

TYPES = "token_type_ids"

CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "BertJapanese", "ConvBert", "Deberta", "DebertaV2", "Electra", "Funnel"),
        *("LayoutLM", "Lxmert", "MobileBert", "SqueezeBert"),
    )
)
"""Classes that give types by default, without the suffix Fast. Source: transformers 5.23."""

MODEL_TYPES = frozenset(("bert", "electra", "ernie", "gte", "megatron-bert", "nomic_bert"))
"""Models whose tokenizer is one of these classes if its files name none."""


class _Content(msgspec.Struct):
    content: str


class _Settings(msgspec.Struct):
    """The keys that are read."""

    model_input_names: tuple[str, ...] | None = None
    tokenizer_class: str | None = None
    pad_token: str | _Content | None = None


def has_types(folder: Path, model_type: str) -> bool:
    """Whether the tokenizer of a folder gives each token of a pair a type, as in transformers.

    Without, every token has type 0, even those of the second text of a pair.
    """
    settings = read_side(folder / CONFIG, _Settings)
    if settings.model_input_names is not None:
        return TYPES in settings.model_input_names
    if settings.tokenizer_class is not None:
        return settings.tokenizer_class.removesuffix("Fast") in CLASSES
    return model_type in MODEL_TYPES


def padding_id(tokenizer: Tokenizer | None, folder: Path | None, own: int | None) -> int:
    """Id of the padding that an encoder reads like other tokens (SigLIP).

    Configs often leave it out or have another one, so it is that of the tokenizer, as in
    transformers.
    """
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
        token = read_side(folder / name, _Settings).pad_token
        if token is not None:
            return token if isinstance(token, str) else token.content
    return None

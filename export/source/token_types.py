"""Whether texts come with token types, which transformers decides by the tokenizer's files.

`model_input_names` says so, or else the tokenizer's class. Without them, every token has type 0,
even those of the second text of a pair.
"""

from pathlib import Path

import msgspec

from ortolan.export.source.side_file import read_side

CONFIG = "tokenizer_config.json"

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


class _Names(msgspec.Struct):
    """The keys that are read."""

    model_input_names: tuple[str, ...] | None = None
    tokenizer_class: str | None = None


def has_types(folder: Path, model_type: str) -> bool:
    """Whether the tokenizer of a folder gives each token of a pair a type."""
    names = read_side(folder / CONFIG, _Names)
    if names.model_input_names is not None:
        return TYPES in names.model_input_names
    if names.tokenizer_class is not None:
        return names.tokenizer_class.removesuffix("Fast") in CLASSES
    return model_type in MODEL_TYPES

"""The symbols of a model with CTC, from the vocab.json and tokenizer_config.json of a checkpoint.

The keys are those of Hugging Face's Wav2Vec2CTCTokenizer, with its defaults. Such checkpoints have
no tokenizer.json: to decode is to join texts, so the bundle holds the text of each symbol.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import read_side
from ortolan.runtime.limits import MAX_LABEL_LENGTH, MAX_LABELS

VOCABULARY, ADDED = "vocab.json", "added_tokens.json"

TOKENIZER, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"

FILES = (VOCABULARY, ADDED, TOKENIZER, SPECIAL)

CLASSES = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer", None)
"""Tokenizers that decode by joining symbols."""

SPACE = " "

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The symbols of a model.

    Attributes:
        texts: of each symbol; that between words is a space. Empty if they are not known.
        blank: number of the symbol that stands for nothing.
    """

    texts: tuple[str, ...] = ()
    blank: int | None = None


NO_SYMBOLS = Symbols()
"""Those of a model without CTC, or without a vocabulary."""


class _Token(msgspec.Struct, frozen=True):
    content: str


_Name = str | _Token | None


class _Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read. All others are for texts that are encoded."""

    tokenizer_class: str | None = None
    pad_token: _Name = "<pad>"
    unk_token: _Name = "<unk>"
    word_delimiter_token: _Name = "|"
    replace_word_delimiter_char: str | None = SPACE
    do_lower_case: bool = False
    added_tokens_decoder: dict[str, _Token] = {}


def ctc_symbols(folder: Path | None, size: int) -> Symbols:
    """The symbols of a model with CTC."""
    if folder is None or not (folder / VOCABULARY).is_file():
        return NO_SYMBOLS
    settings = _settings(folder)
    if settings.tokenizer_class not in CLASSES:
        raise OptionError(
            f"{TOKENIZER}: expected the tokenizer_class {CLASSES[0]}, got "
            f"{settings.tokenizer_class!r:.80}. Remove {VOCABULARY} to export the logits alone."
        )
    if settings.replace_word_delimiter_char != SPACE:
        raise OptionError(
            f"{TOKENIZER}: words must be separated by spaces (got replace_word_delimiter_char "
            f"{settings.replace_word_delimiter_char!r:.40}). Correct it."
        )
    own = read_side(folder / VOCABULARY, dict[str, int])
    _check(own, size)
    ids = _with_added(own, folder, settings)
    blank = ids.get(_text(settings.pad_token))
    if blank is None or blank >= size:
        raise OptionError(
            f"{VOCABULARY}: expected the pad_token {_text(settings.pad_token)!r:.40} among the "
            f"{size} symbols, as the blank, got none. Correct pad_token in {TOKENIZER}."
        )
    named = {number: text for text, number in ids.items()}
    delimiter = ids.get(_text(settings.word_delimiter_token))
    if delimiter is not None:
        named[delimiter] = SPACE
    texts = [named.get(number, _text(settings.unk_token)) for number in range(size)]
    if not all(0 < len(text) <= MAX_LABEL_LENGTH for text in texts):
        raise OptionError(
            f"{VOCABULARY}: symbols must have 1 to {MAX_LABEL_LENGTH} characters. Correct it."
        )
    lower = settings.do_lower_case
    return Symbols(texts=tuple(text.lower() if lower else text for text in texts), blank=blank)


def _settings(folder: Path) -> _Tokenizer:
    """Settings of the tokenizer; old checkpoints name special tokens in a file of their own."""
    special = read_side(folder / SPECIAL, dict[str, object])
    values = special | read_side(folder / TOKENIZER, dict[str, object])
    try:
        return msgspec.convert(values, _Tokenizer)
    except msgspec.ValidationError as error:
        raise OptionError(f"{folder / TOKENIZER}: {error}. Correct it.") from error


def _with_added(own: Mapping[str, int], folder: Path, settings: _Tokenizer) -> dict[str, int]:
    """Number of each symbol; a text that was added takes a number that is free."""
    added = read_side(folder / ADDED, dict[str, int])
    for number, token in settings.added_tokens_decoder.items():
        if number.isdecimal():
            added.setdefault(token.content, int(number))
    taken = set(own.values())
    return {text: number for text, number in added.items() if number not in taken} | dict(own)


def _check(ids: Mapping[str, int], size: int) -> None:
    if size > MAX_LABELS:
        raise OptionError(f"{VOCABULARY}: at most {MAX_LABELS} symbols are supported (got {size}).")
    numbers = set(ids.values())
    if len(numbers) < len(ids) or not numbers <= set(range(size)):
        raise OptionError(
            f"{VOCABULARY}: symbols must have different numbers from 0 to {size - 1}, as many as "
            "the model has. The file belongs to another model."
        )


def _text(name: _Name) -> str:
    return "" if name is None else name if isinstance(name, str) else name.content

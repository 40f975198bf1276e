"""Tokenizers trained on the text of a recipe."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from ortolan import files
from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.errors import RecipeError


def byte_level_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    pieces: str | None = None,
) -> Tokenizer:
    """Train a byte-level BPE (Sennrich et al. 2016; Radford et al. 2019).

    The special tokens get the first ids; for `pieces` see `TokenizerRecipe`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _splitter(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _splitter(pieces: str | None) -> pre_tokenizers.PreTokenizer:
    if pieces is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    try:
        split = pre_tokenizers.Split(Regex(pieces), "isolated")
    except Exception as error:  # the library raises nothing more specific
        raise RecipeError(
            f"tokenizer.pieces: {pieces!r} is not a regular expression: {error}."
        ) from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def save_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    special_tokens: Mapping[str, str] | None = None,
    max_tokens: int | None = None,
) -> None:
    """Write tokenizer.json, and tokenizer_config.json if transformers needs `special_tokens`."""
    files.write(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    if special_tokens:
        settings = {"clean_up_tokenization_spaces": False, "model_max_length": max_tokens}
        write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens, **settings},
        )


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise RecipeError(f"The tokenizer has no token {token!r}. Check tokenizer.end_of_text.")
    return number


def encode(tokenizer: Tokenizer, texts: Sequence[str], end_of_text: str) -> list[list[int]]:
    """Ids of the documents, each after the special token."""
    start = id_of(tokenizer, end_of_text)
    return [[start, *encoding.ids] for encoding in tokenizer.encode_batch(list(texts))]


def padded(rows: Sequence[Sequence[int]], fill: int, length: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids padded on the right, int64 `(B, T)`, and their lengths, int64 `(B,)`.

    T is `length`, or that of the longest row if it is longer.
    """
    length = max(length, *map(len, rows))
    filled = [[*row, *[fill] * (length - len(row))] for row in rows]
    return torch.tensor(filled), torch.tensor([len(row) for row in rows])

"""Tokenizers that are trained on the text of a recipe.

Knows tokens. Does not know where texts come from or what is learned from them.
"""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ortolan.modeling.errors import RecipeError


def byte_level_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    before: Sequence[pre_tokenizers.PreTokenizer] = (),
    splits_words: bool = True,
) -> Tokenizer:
    """A byte-level BPE (Sennrich et al. 2016; Radford et al. 2019).

    Args:
        texts: to learn pieces from.
        vocab_size: ids, special ones included; fewer where the texts have no more pieces.
        special_tokens: the first ids, in this order.
        before: what cuts texts before they are cut into words.
        splits_words: cut into words as GPT-2 does; False where `before` does it.
    """
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_words)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, words]) if before else words
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token.

    Raises:
        RecipeError: the tokenizer has no such token.
    """
    found = tokenizer.token_to_id(token)
    if found is None:
        raise RecipeError(
            f"tokenizer: expected the token {token!r}, got a tokenizer without it. "
            "Check tokenizer.end_of_text."
        )
    return found


def encode(tokenizer: Tokenizer, texts: Sequence[str], end_of_text: str) -> list[list[int]]:
    """Ids of each document, the special token before it.

    Raises:
        RecipeError: the tokenizer has no such token.
    """
    start = id_of(tokenizer, end_of_text)
    return [[start, *encoding.ids] for encoding in tokenizer.encode_batch(list(texts))]

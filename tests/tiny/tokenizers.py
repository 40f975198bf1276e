"""Tokenizers with one token per character or word."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


def of_characters(
    first: Sequence[str] = ("<unk>", "<s>", "</s>"),
    last: Sequence[str] = (),
    merges: Sequence[tuple[str, str]] = (),
) -> Tokenizer:
    """One token per printable ASCII character, between `first` and `last`."""
    tokens = (*first, *map(chr, range(32, 126)), *last)
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[*merges], unk_token=first[0]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def of_words(words: Sequence[str], special: Sequence[str], unknown: str) -> Tokenizer:
    """One token per word between spaces. `words` holds the special ones too."""
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*special])
    return tokenizer


def of_texts(special: Sequence[str], size: int) -> Tokenizer:
    """Words `w5`, `w6` ... after five special ones, of which two are the ends of a text."""
    names = [*special, *(f"w{number}" for number in range(len(special), size))]
    return with_ends(of_words(names, special, "[UNK]"), "[CLS] $A [SEP]")


def with_ends(tokenizer: Tokenizer, single: str, pair: str | None = None) -> Tokenizer:
    """Put special tokens around texts and pairs; the tokenizer is changed and returned."""
    words = {word.partition(":")[0] for word in f"{single} {pair or ''}".split()}
    ends = sorted(word for word in words if not word.startswith("$"))
    ids = [(word, tokenizer.token_to_id(word)) for word in ends]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    return tokenizer


def of_pairs() -> Tokenizer:
    """`of_characters` with `<s>` and `</s>` around texts and pairs, as RoBERTa has them."""
    return with_ends(of_characters(), "<s> $A </s>", "<s> $A </s> </s> $B:1 </s>:1")

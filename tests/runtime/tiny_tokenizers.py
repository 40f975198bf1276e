"""Small tokenizers of each kind, trained in memory, and ids for them."""

import itertools
import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library

from ortolan.runtime.inputs.tokenizer import Tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))

CORPUS = [
    "def greet(name):\n    return f'Hello, {name}!'\n",
    "The quick brown fox doesn't jump over the lazy dog. Café, naïve, Übung, façade!",
    "日本語のテキスト, русский текст, emoji 🙂🙃👩‍👩‍👧, العربية.",
    "1 + 2 == 3 and 4 * 5 != 21",
] * 3


def byte_level() -> Library:
    """Like GPT-2, Llama 3 and Qwen: bytes spelled in letters, special and plain added tokens."""
    tokenizer = Library(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    # letters of the byte alphabet, letters outside it, and a mixture
    tokenizer.add_tokens(["<tool>", "é", "漢字", "aé漢", "\ufffd"])
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def sentencepiece(*, strips: bool = True) -> Library:
    """Like Llama 2, or Gemma without the strip: ▁ for spaces, <0xNN> for unknown bytes."""
    alphabet = ["▁", "H", "e", "l", "o", "w", "r", "d", "é", "\ufffd", "日"]
    merges = [("l", "l"), ("▁", "▁"), ("H", "e"), ("o", "r"), ("▁", "w"), ("▁▁", "▁▁")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *alphabet]
    tokens += ["".join(pair) for pair in merges]
    tokenizer = Library(
        models.BPE(
            vocab={token: place for place, token in enumerate(tokens)},
            merges=merges,
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if strips else replace
    )
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<tool>", "<0xZZ>", "<0xé>"])
    return tokenizer


def gemma() -> Library:
    return sentencepiece(strips=False)


def metaspace() -> Library:
    """Like T5 and XLM-R: the decoder drops the space before the first word."""
    tokenizer = Library(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> Library:
    """Like BERT: ## continues a word, and spaces before punctuation are removed."""
    tokenizer = Library(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def words() -> Library:
    """Without a decoder: tokens are joined with spaces."""
    tokenizer = Library(
        models.WordLevel({"<unk>": 0, "a": 1, "b c": 2, "": 3, "é": 7}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def suffixed() -> Library:
    """Like GPT-1: </w> ends a word. The last token decodes differently, so nothing streams."""
    tokenizer = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def rewriting() -> Library:
    """A decoder that rewrites the joined text across tokens."""
    tokenizer = Library(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, unk_token="a"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "-")])
    return tokenizer


KINDS: dict[str, Callable[[], Library]] = {
    kind.__name__: kind
    for kind in (
        byte_level,
        sentencepiece,
        gemma,
        metaspace,
        wordpiece,
        words,
        suffixed,
        rewriting,
    )
}


def saved(tokenizer: Library, **changes: Any) -> bytes:
    """Return the file of a tokenizer, with some keys changed."""
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return json.dumps(content | changes).encode()


@cache
def library(kind: str) -> Library:
    return Library.from_str(KINDS[kind]().to_str())


@cache
def ours(kind: str) -> Tokenizer:
    return Tokenizer.from_bytes(library(kind).to_str().encode())


def id_of(kind: str, text: str) -> int:
    token: int | None = library(kind).token_to_id(text)
    if token is None:
        raise LookupError(text)
    return token


def pieces(kind: str, ids: Iterable[int], *, skip_special_tokens: bool = True) -> list[str]:
    stream = ours(kind).stream(skip_special_tokens=skip_special_tokens)
    return [*(stream.push(token) for token in ids), stream.flush()]


def tokens_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Return random ids, some in runs of bytes that spell whole or broken characters."""
    each = st.integers(0, ours(kind).vocab_size - 1)
    texts = TEXTS.map(lambda text: ours(kind).encode(text, add_special_tokens=False))
    cut = st.tuples(texts, st.integers(0, 8), st.integers(0, 8)).map(lambda t: t[0][t[1] :][: t[2]])
    return st.lists(st.one_of(st.lists(each, max_size=4), texts, cut), max_size=6).map(
        lambda parts: list(itertools.chain.from_iterable(parts))
    )

"""The tokenizer.json equivalent to the tokenizer of a GGUF file.

A file names the type of its vocabulary and, for byte-level BPE, the pre-tokenizer that splits text
before merging. The tables below define the pre-tokenizers by name.

Source of the patterns: llama.cpp, src/llama-vocab.cpp, which quotes published tokenizers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.errors import CheckpointError

T = TypeVar("T")

CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2
"""Token types: control tokens, tokens that are never split, and the unknown token."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's mark for a space."""

_CASED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"

LLAMA3 = rf"{_CASED}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CASED}|{_START}\p{{L}}+|\p{{N}}|{_REST}"
_TEKKEN_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_TEKKEN_REST}"
GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CASED}?|{_START}{_UPPER}+{_LOWER}*{_CASED}?"
    rf"|\p{{N}}{{1,3}}|{_TEKKEN_REST}"
)


class Words(NamedTuple):
    """A pre-tokenizer: how text is split before merging bytes.

    Attributes:
        pattern: regular expression of a word; None for GPT-2's.
        digits: split numbers into digits.
        composed: normalize text to NFC.
        keeps_words: do not merge a word that is a token itself.
        begins: text starts with a special token unless the file says otherwise.
    """

    pattern: str | None = None
    digits: bool = False
    composed: bool = False
    keeps_words: bool = False
    begins: bool = False


_WORDS = {
    "gpt-2 mpt olmo jais phi-2 trillion granite-docling gpt2": Words(),
    "smollm starcoder refact command-r codeshell exaone minerva-7b": Words(digits=True),
    "llama3 llama-v3 llama-bpe falcon3": Words(LLAMA3, keeps_words=True, begins=True),
    "dbrx smaug-bpe": Words(LLAMA3),
    "qwen2 deepseek-r1-qwen": Words(QWEN2, composed=True),
    "stablelm2 hunyuan": Words(QWEN2),
    "tekken": Words(TEKKEN, keeps_words=True),
    "gpt-4o llama4": Words(GPT4O),
}

WORDS = {name: words for names, words in _WORDS.items() for name in names.split()}
"""By `tokenizer.ggml.pre`."""


def tokenizer_json(header: Header) -> str:
    """Content of a tokenizer.json."""
    build = _chosen(header, "model", {"gpt2": _of_bytes, "llama": _of_pieces})
    tokens = _list(header, "tokens", str)
    try:
        tokenizer, begins = build(header, tokens)
        kinds = _kinds(header, len(tokens))
        special, plain = (
            [
                AddedToken(token, normalized=False, special=wanted == CONTROL)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == wanted
            ]
            for wanted in (CONTROL, USER_DEFINED)
        )
        tokenizer.add_special_tokens(special)
        tokenizer.add_tokens(plain)
        _enclose(tokenizer, header, tokens, begins=begins)
        return tokenizer.to_str()
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing more specific
        damage = f"the tokenizer is damaged: {error!s:.100}"
        raise _refused(header, damage, advice="Download the file again, or pass") from error


def _of_bytes(header: Header, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE."""
    words = _chosen(header, "pre", WORDS)
    merges = [merge.partition(" ")[::2] for merge in _list(header, "merges", str)]
    tokenizer = Tokenizer(models.BPE(_vocabulary(tokens), merges, ignore_merges=words.keeps_words))
    if words.composed:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if words.digits:
        cuts.append(pre_tokenizers.Digits(individual_digits=True))
    if words.pattern is not None:
        cuts.append(pre_tokenizers.Split(Regex(words.pattern), "isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words.begins


def _of_pieces(header: Header, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE with byte fallback; pieces merge in the order of their scores."""
    pieces = [_spelled(token) for token in tokens]
    vocabulary = _vocabulary(pieces)
    scores = header.metadata.get("tokenizer.ggml.scores")
    ranks = {piece: -float(i) for piece, i in vocabulary.items()}
    # Gemma's scores belong to another algorithm.
    is_gemma = header.architecture.startswith("gemma")
    if isinstance(scores, list) and len(set(map(str, scores))) > 1 and not is_gemma:
        ranks = {piece: cast(float, scores[i]) for piece, i in vocabulary.items()}
    kinds = _kinds(header, len(tokens))
    unknown = next((tokens[i] for i, kind in enumerate(kinds) if kind == UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            list(_merges(vocabulary, ranks, kinds)),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    first = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    return tokenizer, True


def _spelled(token: str) -> str:
    """Write pieces of spaces as SentencePiece does."""
    return SPACE * len(token) if token and not token.strip(" ") else token


def _merges(
    vocabulary: Mapping[str, int], ranks: Mapping[str, float], kinds: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """All pairs of pieces that merge to a piece, best first."""
    pairs = []
    for piece, token in vocabulary.items():
        if kinds[token] in (CONTROL, UNKNOWN):
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                # Of two splits of the same piece, prefer the longer first part.
                pairs.append((-ranks[piece], -cut, piece))
    return ((piece[:-cut], piece[-cut:]) for _, cut, piece in sorted(pairs))


def _enclose(tokenizer: Tokenizer, header: Header, tokens: Sequence[str], *, begins: bool) -> None:
    """Add the special tokens that the file puts around a text."""
    before = _special(header, tokens, "bos", begins)
    after = _special(header, tokens, "eos", False)
    if not before and not after:
        return

    def around(text: str, kind: int) -> list[str]:
        first, last = ([f"{token}:{kind}" for token in side] for side in (before, after))
        return [*first, f"{text}:{kind}", *last]

    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=[*around("$A", 0), *around("$B", 1)],
        special_tokens=list((before | after).items()),
    )


def _special(header: Header, tokens: Sequence[str], side: str, default: bool) -> dict[str, int]:
    """Special token at one side of a text, with its id; empty if there is none."""
    number = header.metadata.get(f"tokenizer.ggml.{side}_token_id")
    is_added = header.metadata.get(f"tokenizer.ggml.add_{side}_token", default)
    return {tokens[number]: number} if is_added is True and isinstance(number, int) else {}


def _kinds(header: Header, count: int) -> list[int]:
    """Type of each token; all the same if the file does not say."""
    if "tokenizer.ggml.token_type" not in header.metadata:
        return [1] * count
    return _list(header, "token_type", int)


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by token; the first one for duplicates."""
    return {token: number for number, token in reversed(list(enumerate(tokens)))}


def _list(header: Header, name: str, kind: type[T]) -> list[T]:
    """An array of the tokenizer."""
    values = header.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise _refused(header, f"tokenizer.ggml.{name} must be an array of {kind.__name__}")
    return cast(list[T], values)


def _chosen(header: Header, key: str, choices: Mapping[str, T]) -> T:
    """The choice that a key of the tokenizer names."""
    name = header.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(name, str) or name not in choices:
        known = ", ".join(choices)
        raise _refused(header, f"tokenizer.ggml.{key} must be one of {known} (got {name!r:.40})")
    return choices[name]


def _refused(header: Header, problem: str, *, advice: str = "Pass") -> CheckpointError:
    return CheckpointError(
        f"{header.path}: {problem}. {advice} the model's own tokenizer: --tokenizer FILE."
    )

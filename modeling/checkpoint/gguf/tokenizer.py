"""The tokenizer.json equivalent to the tokenizer of a GGUF file.

A file names the type of its vocabulary and, for byte-level BPE, the pre-tokenizer that splits text
before merging. The tables below define the pre-tokenizers by name.

Source of the patterns: llama.cpp, src/llama-vocab.cpp, which quotes published tokenizers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

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


_LLAMA3 = Words(LLAMA3, keeps_words=True, begins=True)
_DIGITS = Words(digits=True)

WORDS: Mapping[str, Words] = {
    "gpt-2": Words(),
    "mpt": Words(),
    "olmo": Words(),
    "jais": Words(),
    "phi-2": Words(),
    "trillion": Words(),
    "granite-docling": Words(),
    "gpt2": Words(),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "exaone": _DIGITS,
    "minerva-7b": _DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": Words(LLAMA3),
    "smaug-bpe": Words(LLAMA3),
    "qwen2": Words(QWEN2, composed=True),
    "deepseek-r1-qwen": Words(QWEN2, composed=True),
    "stablelm2": Words(QWEN2),
    "hunyuan": Words(QWEN2),
    "tekken": Words(TEKKEN, keeps_words=True),
    "gpt-4o": Words(GPT4O),
    "llama4": Words(GPT4O),
}
"""By `tokenizer.ggml.pre`."""


def tokenizer_json(header: Header) -> str:
    """Content of a tokenizer.json."""
    kind = header.metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _of_bytes, "llama": _of_pieces}
    if not isinstance(kind, str) or kind not in builders:
        raise _unknown(header, "tokenizer.ggml.model", builders, kind)
    tokens = _list(header, "tokens", str)
    try:
        tokenizer, begins = builders[kind](header, tokens)
        tokenizer.add_special_tokens(_added(header, tokens, CONTROL, special=True))
        tokenizer.add_tokens(_added(header, tokens, USER_DEFINED, special=False))
        _enclose(tokenizer, header, tokens, begins=begins)
        return tokenizer.to_str()
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(
            f"{header.path}: the tokenizer is damaged: {error!s:.100}. Download the file again, or "
            "pass the model's own tokenizer: --tokenizer FILE."
        ) from error


def _of_bytes(header: Header, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE."""
    name = header.metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in WORDS:
        raise _unknown(header, "tokenizer.ggml.pre", WORDS, name)
    words = WORDS[name]
    merges = [_pair(merge) for merge in _list(header, "merges", str)]
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
    ranks = {p: -float(i) for p, i in vocabulary.items()}
    if isinstance(scores, list) and len(set(map(str, scores))) > 1 and not _is_gemma(header):
        ranks = {p: cast(float, scores[i]) for p, i in vocabulary.items()}
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


def _is_gemma(header: Header) -> bool:
    """Whether to merge in the order of token ids: Gemma's scores belong to another algorithm."""
    return str(header.metadata.get("general.architecture")).startswith("gemma")


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


def _added(
    header: Header, tokens: Sequence[str], token_type: int, *, special: bool
) -> list[AddedToken]:
    kinds = _kinds(header, len(tokens))
    return [
        AddedToken(token, normalized=False, special=special)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == token_type
    ]


def _kinds(header: Header, count: int) -> list[int]:
    """Type of each token; all the same if the file does not say."""
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    return [1] * count if kinds is None else cast(list[int], _list(header, "token_type", int))


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by token; the first one for duplicates."""
    return {token: number for number, token in reversed(list(enumerate(tokens)))}


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _list(header: Header, name: str, kind: type) -> list[str]:
    """An array of the tokenizer."""
    values = header.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.{name} must be an array of {kind.__name__}. Pass the "
            "model's own tokenizer: --tokenizer FILE."
        )
    return cast(list[str], values)


def _unknown(
    header: Header, key: str, choices: Mapping[str, object], value: object
) -> CheckpointError:
    return CheckpointError(
        f"{header.path}: {key} must be one of {', '.join(choices)} (got {value!r:.40}). Pass the "
        "model's own tokenizer: --tokenizer FILE."
    )

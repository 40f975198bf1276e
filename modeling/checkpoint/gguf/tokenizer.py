"""The tokenizer.json that a GGUF file stands for.

A file names the kind of its vocabulary and, for bytes, a kind of words that text is cut into before
any merge. Which words those are is known by name alone: the tables below.

Source of the cuts: llama.cpp, src/llama-vocab.cpp, which quotes them from the tokenizers that
were published.
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
"""Kinds of tokens: those that no text contains, and those that are never cut."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

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
    """How text is cut before bytes are merged.

    Attributes:
        pattern: of a word; None for that of GPT-2.
        digits: each digit is a word.
        composed: of characters in their composed form.
        keeps_words: a word that is a token is not merged from its parts.
        begins: the text begins with a special token, unless the file says otherwise.
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
    """The content of a tokenizer.json.

    Raises:
        CheckpointError: a kind of vocabulary or of words that is not known, or a damaged one.
    """
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
    except Exception as error:  # the library raises nothing more narrow
        raise CheckpointError(
            f"{header.path}: expected a whole tokenizer, got {error!s:.100}. Fetch it again, or "
            "give the model's own: --tokenizer FILE."
        ) from error


def _of_bytes(header: Header, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """Byte pairs, of words of bytes."""
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
    """Pieces of SentencePiece, merged in the order of their scores, with bytes for the rest."""
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
    """Whether the order of merges is that of the tokens: Gemma's scores are another's."""
    return str(header.metadata.get("general.architecture")).startswith("gemma")


def _spelled(token: str) -> str:
    """A piece of spaces alone, as the others write spaces."""
    return SPACE * len(token) if token and not token.strip(" ") else token


def _merges(
    vocabulary: Mapping[str, int], ranks: Mapping[str, float], kinds: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """All pairs of pieces that make a piece, best first."""
    found = []
    for piece, token in vocabulary.items():
        if kinds[token] in (CONTROL, UNKNOWN):
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                # Of two ways to the same piece, that with the longer first part.
                found.append((-ranks[piece], -cut, piece))
    return ((piece[:-cut], piece[-cut:]) for _, cut, piece in sorted(found))


def _enclose(tokenizer: Tokenizer, header: Header, tokens: Sequence[str], *, begins: bool) -> None:
    """Put the special tokens around a text that the file asks for."""
    before, after = _asked(header, tokens, "bos", begins), _asked(header, tokens, "eos", False)
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


def _asked(header: Header, tokens: Sequence[str], side: str, default: bool) -> dict[str, int]:
    """The special token of a side of a text, with its id; nothing where there is none."""
    number = header.metadata.get(f"tokenizer.ggml.{side}_token_id")
    wanted = header.metadata.get(f"tokenizer.ggml.add_{side}_token", default)
    return {tokens[number]: number} if wanted is True and isinstance(number, int) else {}


def _added(
    header: Header, tokens: Sequence[str], wanted: int, *, special: bool
) -> list[AddedToken]:
    kinds = _kinds(header, len(tokens))
    return [
        AddedToken(token, normalized=False, special=special)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted
    ]


def _kinds(header: Header, count: int) -> list[int]:
    """The kind of each token; all alike in a file that does not say."""
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    return [1] * count if kinds is None else cast(list[int], _list(header, "token_type", int))


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by tokens; the first of equal ones."""
    return {token: number for number, token in reversed(list(enumerate(tokens)))}


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _list(header: Header, name: str, kind: type) -> list[str]:
    """An array of the tokenizer."""
    values = header.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise CheckpointError(
            f"{header.path}: expected tokenizer.ggml.{name} to be an array, got "
            f"{type(values).__name__}. Give the model's own tokenizer: --tokenizer FILE."
        )
    return cast(list[str], values)


def _unknown(header: Header, key: str, known: Mapping[str, object], got: object) -> CheckpointError:
    return CheckpointError(
        f"{header.path}: expected {key} to be one of {', '.join(known)}, got {got!r:.40}. Give the "
        "model's own tokenizer: --tokenizer FILE."
    )

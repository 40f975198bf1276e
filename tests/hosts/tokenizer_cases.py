"""Tokenizers of every kind, trained on the spot, and texts that are hard to tokenize."""

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, trainers
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p
from tokenizers import processors as post

REPOSITORY = Path(__file__).parents[2]

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001, the pattern of a published tokenizer
SPACES = r" {2,}"

SAMPLES = [
    "The quick brown fox jumps over the lazy dog. It's 12,345 times faster, isn't it?",
    "def read_lines(path):\n    with open(path) as file:\n        return [line for line in file]\n",
    "Über Größe entscheidet ein Café in Zürich; naïve façade, coöperation, ﬁne ½.",
    "日本語のテキストと漢字、カタカナ。中文文本也在这里。한국어 텍스트",
    "مرحبا بالعالم هذا نص عربي  и немного русского текста",
    "x = 3.14 * (a + b) ** 2  # comment\n\tif x >= 10: print('done', x)\n\n",
    "emoji 😀👍🏽👨‍👩‍👧 and more 🇩🇪 text",
]

BLOCKS = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530)),
    *((0x5D0, 0x5EB), (0x610, 0x660), (0x660, 0x6D4), (0x905, 0x970), (0xE01, 0xE3B)),
    *((0x1100, 0x1200), (0x1E00, 0x1EFF), (0x2000, 0x2070), (0x2150, 0x2189), (0x2460, 0x2500)),
    *((0x2580, 0x2600), (0x2600, 0x2700), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00)),
    *((0xF900, 0xFA00), (0xFB00, 0xFB07), (0xFF00, 0xFF70), (0x1D400, 0x1D455)),
    *((0x1F300, 0x1F650), (0x1F1E6, 0x1F200), (0x20000, 0x20050)),
)
"""Characters that all versions of Unicode in use know."""

PARTS = (
    *(
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u200d",
        "\ufe0f",
        "\ufeff",
        "\0",
        "\x85",
    ),
    *("e\u0301", "q\u0323\u0307", "\u1112\u1161\u11ab", "\u0344", "a\u0315\u0300\u05ae", "İ", "ß"),
    *("<s>", "</s>", "<unk>", "[CLS]", "[MASK]", "<pad>", "<|im_start|>", "Word", "wOrd", "▁", "Ġ"),
    *(
        "'s",
        "'LL",
        "n't",
        " do not",
        "<0x0A>",
        "##ing",
        "</w>",
        "😀",
        "👨‍👩‍👧",
        "©\u200d",
        "\u06d4",
        "…",
    ),
)


def texts(count: int, seed: int) -> Iterator[str]:
    """Yield texts of words, code, control tokens and characters of many blocks."""
    draw = random.Random(seed)
    yield from ["", " ", "a", "word word", *SAMPLES]
    for _ in range(count - 11):
        pieces = []
        for _ in range(draw.choice([1, 2, 4, 8, 30])):
            kind = draw.random()
            if kind < 0.35:
                pieces.append(draw.choice(PARTS))
            elif kind < 0.6:
                sample = draw.choice(SAMPLES)
                start = draw.randrange(len(sample))
                pieces.append(sample[start : start + draw.randrange(1, 20)])
            else:
                block = draw.choice(BLOCKS)
                pieces.extend(chr(draw.randrange(*block)) for _ in range(draw.randrange(1, 6)))
        yield "".join(pieces)


# --- tokenizers ---------------------------------------------------------------------------------


def charsmap(replacements: Mapping[str, str]) -> bytes:
    """Return a SentencePiece table: size, double array, and texts that end with NUL."""
    texts = b"".join(value.encode() + b"\0" for value in replacements.values())
    starts, at = {}, 0
    for key, value in replacements.items():
        starts[key.encode()] = at
        at += len(value.encode()) + 1
    units, used = [0] * (1 << 16), {0}
    waiting: list[tuple[bytes, int]] = [(b"", 0)]
    while waiting:
        prefix, node = waiting.pop()
        labels = {key[len(prefix)] for key in starts if key.startswith(prefix) and key != prefix}
        places = [*labels, *([0] if prefix in starts else [])]
        # offsets of 256 and more so that a child never is its parent
        offset = next(o for o in range(256, 1 << 16) if not {o ^ label for label in places} & used)
        used |= {offset ^ label for label in places}
        units[node] |= (node ^ offset) << 10 | (1 << 8 if prefix in starts else 0)
        if prefix in starts:
            units[offset] = starts[prefix] | 1 << 31
        for label in labels:
            units[offset ^ label] = label
            waiting.append((prefix + bytes([label]), offset ^ label))
    trie = b"".join(unit.to_bytes(4, "little") for unit in units[: max(used) + 256])
    return len(trie).to_bytes(4, "little") + trie + texts


CHARSMAP = charsmap(
    {"ﬁ": "fi", "½": "1/2", "e\u0301": "é", "\u3000": " ", "\t": " ", "\r\n": " ", "\uff21": "A"}
    | {"①": "1", "㎏": "kg", "…": "...", "\u200d": "", "q": "Q", "©": "(c)"}
)


def trained(
    model: Any,
    trainer: Any,
    *,
    normalizer: Any = None,
    pre: Any = None,
    decoder: Any = None,
    processor: Any = None,
    added: Sequence[AddedToken] = (),
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    for name, part in [("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", decoder)]:
        if part is not None:
            setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(SAMPLES * 3, trainer)
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.add_tokens([*added])
    return tokenizer


SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
ADDED = [
    AddedToken("[MASK]", lstrip=True, special=True),
    AddedToken("<|im_start|>", rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=True),
    AddedToken("wOrd", lstrip=True, rstrip=True, normalized=False),
]


def template(first: str, last: str) -> Any:
    return post.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(first, SPECIAL.index(first)), (last, SPECIAL.index(last))],
    )


def byte_level(pre: Any, **parts: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=p.ByteLevel.alphabet()
    )
    options = {"decoder": decoders.ByteLevel(), **parts}
    return trained(models.BPE(), trainer, pre=pre, **options)


def sentencepiece(**parts: Any) -> Tokenizer:
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*SPECIAL, *BYTES])
    return trained(model, trainer, **parts)


def unigram(*, byte_fallback: bool = False, **parts: Any) -> Tokenizer:
    special = [*SPECIAL, *(BYTES if byte_fallback else [])]
    trainer = trainers.UnigramTrainer(
        vocab_size=250 + len(special),
        special_tokens=special,
        unk_token="<unk>",
        shrinking_factor=0.9,
    )
    tokenizer = trained(models.Unigram(), trainer, **parts)
    if byte_fallback:
        document = json.loads(tokenizer.to_str())
        document["model"]["byte_fallback"] = True
        tokenizer = Tokenizer.from_str(json.dumps(document))
    return tokenizer


def wordpiece(**parts: Any) -> Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL)
    model = models.WordPiece(unk_token="<unk>", max_input_chars_per_word=20)
    return trained(model, trainer, decoder=decoders.WordPiece(), **parts)


def word_level(pre: Any, **parts: Any) -> Tokenizer:
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL)
    return trained(models.WordLevel(unk_token="<unk>"), trainer, pre=pre, **parts)


def clip() -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL,
        initial_alphabet=p.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
    )
    model = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    split = p.Split(Regex(CLIP), "removed", invert=True)
    return trained(
        model,
        trainer,
        normalizer=n.Sequence([n.NFC(), n.Replace(Regex(r"\s+"), " "), n.Lowercase()]),
        pre=p.Sequence([split, p.ByteLevel(add_prefix_space=False, use_regex=False)]),
        decoder=decoders.ByteLevel(),
        processor=post.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False),
    )


def split_then_bytes(*splits: Any) -> Any:
    return p.Sequence([*splits, p.ByteLevel(add_prefix_space=False, use_regex=False)])


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(p.ByteLevel(add_prefix_space=True), added=ADDED),
    "roberta": lambda: byte_level(
        p.ByteLevel(add_prefix_space=False),
        processor=post.RobertaProcessing(("</s>", 1), ("<s>", 0)),
        added=[AddedToken("<unk>", lstrip=True, special=True)],
    ),
    "llama3": lambda: byte_level(
        split_then_bytes(p.Split(Regex(GPT4), "isolated")),
        processor=post.Sequence([post.ByteLevel(), template("<s>", "</s>")]),
    ),
    "qwen": lambda: byte_level(
        split_then_bytes(p.Split(Regex(GPT4.replace("{1,3}", "")), "isolated")),
        normalizer=n.NFC(),
        processor=post.ByteLevel(),
        added=ADDED,
    ),
    "bloom": lambda: byte_level(split_then_bytes(p.Split(Regex(BLOOM), "isolated"))),
    "falcon": lambda: byte_level(
        p.Sequence(
            [
                *[p.Punctuation("contiguous"), p.ByteLevel(), p.Digits()],
                p.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
        )
    ),
    "deepseek": lambda: byte_level(
        split_then_bytes(
            p.Split(Regex(r"[\r\n]"), "isolated"),
            p.Split(Regex(r"\s?\p{L}+"), "merged_with_previous"),
            p.Split("  ", "merged_with_next"),
            p.Digits(individual_digits=True),
        )
    ),
    "bytes by a normalizer": lambda: byte_level(
        p.Split("Ġ", "contiguous"), normalizer=n.ByteLevel(), decoder=decoders.ByteLevel()
    ),
    "clip": clip,
    "llama2": lambda: sentencepiece(
        normalizer=n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]),
        decoder=decoders.Sequence([*LLAMA, decoders.Strip(" ", 1, 0)]),
        processor=template("<s>", "</s>"),
        added=ADDED,
    ),
    "gemma": lambda: sentencepiece(
        normalizer=n.Replace(" ", "▁"),
        pre=p.Split(" ", "merged_with_previous"),
        decoder=decoders.Sequence(LLAMA),
    ),
    "mistral": lambda: sentencepiece(
        pre=p.Metaspace(prepend_scheme="first", split=False),
        decoder=decoders.Sequence([*LLAMA, decoders.Strip(" ", 1, 0)]),
        added=ADDED,
    ),
    "t5": lambda: unigram(
        normalizer=n.Sequence([n.Precompiled(CHARSMAP), n.Replace(Regex(SPACES), " ")]),
        pre=p.Sequence([p.WhitespaceSplit(), p.Metaspace()]),
        decoder=decoders.Metaspace(),
        processor=template("[CLS]", "</s>"),
    ),
    "albert": lambda: unigram(
        normalizer=n.Sequence(
            [
                *[n.Replace("``", '"'), n.NFKD(), n.StripAccents(), n.Lowercase()],
                *[n.Precompiled(CHARSMAP), n.Strip()],
            ]
        ),
        pre=p.Metaspace(),
        decoder=decoders.Metaspace(),
        processor=post.BertProcessing(("[SEP]", 5), ("[CLS]", 4)),
        added=ADDED,
    ),
    "unigram with bytes": lambda: unigram(
        byte_fallback=True,
        normalizer=n.Sequence([n.NFKC(), n.Strip(left=False)]),
        pre=p.Metaspace(prepend_scheme="first"),
        decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ),
    "bert": lambda: wordpiece(
        normalizer=n.BertNormalizer(),
        pre=p.BertPreTokenizer(),
        processor=template("[CLS]", "[SEP]"),
        added=ADDED,
    ),
    "cased bert": lambda: wordpiece(
        normalizer=n.BertNormalizer(strip_accents=False, lowercase=False),
        pre=p.BertPreTokenizer(),
        processor=post.BertProcessing(("[SEP]", 5), ("[CLS]", 4)),
    ),
    "words": lambda: wordpiece(
        normalizer=n.Sequence([n.NFD(), n.Lowercase(), n.StripAccents()]),
        pre=p.Sequence([p.Whitespace(), p.Punctuation("isolated"), p.Digits(True)]),
    ),
    "word level": lambda: word_level(p.Whitespace()),
    "ctc": lambda: word_level(
        p.Sequence([p.CharDelimiterSplit("|"), p.FixedLength(2)]),
        normalizer=n.Sequence([n.Nmt(), n.NFKC()]),
        decoder=decoders.CTC(pad_token="<pad>", word_delimiter_token="a"),
    ),
    "bpe with suffixes": lambda: trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, end_of_word_suffix="</w>"),
        pre=p.WhitespaceSplit(),
        decoder=decoders.BPEDecoder(),
    ),
}

SHIPPED = {
    path.parent.relative_to(REPOSITORY).as_posix(): path
    for folder in ("models", "tests/data")
    for path in sorted((REPOSITORY / folder).rglob("tokenizer.json"))
}


@cache
def document(kind: str) -> str:
    """A tokenizer.json."""
    return SHIPPED[kind].read_text() if kind in SHIPPED else KINDS[kind]().to_str()


def with_charsmap(table: bytes) -> str:
    """A tokenizer.json with this table."""
    description = json.loads(document("word level"))
    description["normalizer"] = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(table).decode(),
    }
    return json.dumps(description)

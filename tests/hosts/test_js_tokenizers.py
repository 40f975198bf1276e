"""Tokenizers in JavaScript against Hugging Face's `tokenizers`: ids, places, types and text."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import tokenizer_cases
from tests.hosts.js_runs import places, run_tests
from tests.runtime import tiny_tokenizers
from tests.runtime.tiny_tokenizers import CORPUS
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import Tokenizer

Document = dict[str, Any]

WORDS = """a é e\u0301 e\u0301\u0323 \u0301 🙂 👩‍👩‍👧 日本語 русский العربية ﬁ ㎏ ½ Å A\u030a ﷺ
İıẞΣς 각
\uff41\uff42 \u1100\u1161\u11a8 ,.!? 's - 0123 quick brown doesn't ABC __proto__
<s> </s> <mask> <tool> <|end|> [CLS] wörd"""

CHARACTERS = [
    *WORDS.split(),
    *(" ", "  ", "\n\t ", "\u00a0", "\u3000", "\u200b", "\ufeff", "\x00", "\x85", "\u2028"),
    "def greet(name):\n    return",
]


def texts(count: int) -> list[str]:
    rng = random.Random(0)

    def text() -> str:
        parts = (rng.choice(CHARACTERS) + rng.choice(["", " "]) for _ in range(rng.randint(1, 9)))
        return "".join(parts)

    return ["", " ", *CORPUS[:4], *(text() for _ in range(count))]


def document(library: Library) -> Document:
    parsed: Document = json.loads(library.to_str())
    return parsed


def roberta() -> Document:
    """Spaces before the first word and before the mask belong to them."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True)])
    library.add_tokens([AddedToken("wörd", single_word=True)])
    library.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return document(library)


def bert() -> Document:
    """Accents and unknown characters stay, and pairs have types."""
    made = document(tiny_tokenizers.wordpiece())
    made["normalizer"] |= {"lowercase": False, "strip_accents": None}
    made["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}
    return made


def xlmr() -> Document:
    """Forms of characters and repeated spaces are changed."""
    made = document(tiny_tokenizers.metaspace())
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    made["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, strip, spaces]}
    made["pre_tokenizer"] |= {"prepend_scheme": "first", "split": False}
    return made


def clip() -> Document:
    """Words end with a suffix, and letters are lower-case."""
    made = document(tiny_tokenizers.suffixed())
    lower = [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "StripAccents"}]
    made["normalizer"] = {"type": "Sequence", "normalizers": lower}
    pattern = {"Regex": r"<s>|'s|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"}
    made["pre_tokenizer"] = {
        "type": "Split",
        "pattern": pattern,
        "behavior": "Removed",
        "invert": True,
    }
    return made


def cut(behavior: str) -> Callable[[], Document]:
    def made() -> Document:
        library = tiny_tokenizers.byte_level()
        library.normalizer = normalizers.NFD()
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("e", behavior),
                pre_tokenizers.Digits(individual_digits=behavior == "isolated"),
                pre_tokenizers.Punctuation(behavior),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return document(library)

    return made


BEHAVIORS = ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")


def of_model(name: str) -> Document:
    path = Path(__file__).parents[2] / "models" / name / "tokenizer.json"
    made: Document = json.loads(path.read_text())
    return made


def of_kind(name: str) -> Document:
    return document(tiny_tokenizers.KINDS[name]())


KINDS: dict[str, Callable[[], Document]] = {
    **{name: partial(of_kind, name) for name in tiny_tokenizers.KINDS},
    **{made.__name__: made for made in (roberta, bert, xlmr, clip)},
    **{behavior: cut(behavior) for behavior in BEHAVIORS},
    **{name: partial(of_model, name) for name in ("shapes", "numerals", "snippets")},
}


def row(tokenizer: Tokenizer, text: str) -> Document:
    bare, spans = tokenizer._bare(text), tokenizer.encode_spans(text).spans
    return {
        "text": text,
        "ids": tokenizer.encode(text),
        "bare": bare.ids,
        "places": [places(text, place) for place in bare.offsets],
        "continues": [span.continues_word for span in spans if span is not None],
        "decoded": tokenizer.decode(bare.ids),
        "cut": tokenizer.encode(text, max_tokens=5),
    }


def pair(tokenizer: Tokenizer, first: str, second: str) -> Document:
    most = 4 + len(tokenizer.encode(first)) + 3
    windows: Any
    try:
        windows = [
            {"ids": ids, "words": [places(second, word) for word in ids.words]}
            for ids in tokenizer.pair_windows(first, second, max_tokens=most, stride=2)
        ]
    except TokenizerError as error:
        windows = {"error": str(error)}
    whole, short = (tokenizer.encode_pair(first, second, max_tokens=n) for n in (None, 9))
    return {
        **{"texts": [first, second], "ids": whole, "types": whole.types},
        **{"short": short, "most": most, "windows": windows},
    }


def case(name: str, made: Document, chosen: list[str]) -> Document:
    tokenizer = Tokenizer.from_bytes(json.dumps(made).encode())
    pairs = zip(chosen[2:30], chosen[5:], strict=False)
    return {
        **{"name": name, "file": made, "size": tokenizer.vocab_size},
        "rows": [row(tokenizer, text) for text in chosen],
        "pairs": [pair(tokenizer, *both) for both in pairs],
    }


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_tokenizers_equal_those_of_python(count: int, tmp_path: Path) -> None:
    cases = [case(name, made(), texts(count)) for name, made in KINDS.items()]
    run_tests("tokenizers", cases, tmp_path)


@pytest.mark.slow
def test_tokenizers_that_c_reads_equal_those_of_python(tmp_path: Path) -> None:
    chosen = [*tokenizer_cases.texts(600, seed=2)]
    names = [*tokenizer_cases.KINDS, *tokenizer_cases.SHIPPED]
    cases = [case(name, json.loads(tokenizer_cases.document(name)), chosen) for name in names]
    run_tests("tokenizers", cases, tmp_path)

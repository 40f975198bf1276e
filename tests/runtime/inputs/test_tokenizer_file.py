"""Files of tokenizers: limits on what a text may become, and files that are refused."""

import base64
import json
from functools import partial
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_tokenizers import library, saved

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs import tokenizer_file
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.inputs.tokenizer_file import read_outline
from ortolan.runtime.limits import MAX_POST_PROCESSOR_BYTES, MAX_TEXT_GROWTH

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
WITHOUT_MATCH = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a"}
PREPENDING = {"type": "Prepend", "prepend": "a"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def nested(kind: str, parts: list[Any]) -> dict[str, Any]:
    """Nest the last part in another Sequence."""
    last = {"type": "Sequence", kind: parts[-1:]}
    return {"type": "Sequence", kind: [*parts[:-1], last]}


MOST = MAX_TEXT_GROWTH.bit_length() - 1
"""Number of doublings within the limit."""


def words(**changes: Any) -> bytes:
    return saved(library("words"), **changes)


def replacement_table(length: int) -> dict[str, str]:
    """A table that replaces one character by `length` characters."""
    trie = bytes(8)
    table = len(trie).to_bytes(4, "little") + trie + b"ab\0" + b"a" * length + b"\0"
    return precompiled(base64.b64encode(table).decode())


def precompiled(table: Any) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": table}


def post_processor(count: int) -> dict[str, Any]:
    """Adds this number of tokens to each text."""
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "a", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"a": {"id": "a", "ids": [1] * count, "tokens": ["a"] * count}},
    }


def repeated_key(first: Any, last: Any) -> bytes:
    plain = words()[:-1].decode()
    twice = [f'"normalizer": {json.dumps(value)}' for value in (first, last)]
    return f"{plain}, {', '.join(twice)}}}".encode()


def with_prefix(prefix: str, **kind: str) -> bytes:
    model = json.loads(library("byte_level").to_str())["model"]
    del model["type"]
    changed = {**model, **kind, "continuing_subword_prefix": prefix}
    return saved(library("byte_level"), model=changed)


def emptied(*, normalized: bool) -> bytes:
    """A tokenizer whose normalizer removes the text of an added token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    token = {"id": 7, "content": "é", "normalized": normalized, **flags}
    normalizer = {"type": "Replace", "pattern": {"String": "é"}, "content": ""}
    return words(normalizer=normalizer, added_tokens=[token])


GROWING = {"doubled": DOUBLING, "without a match": WITHOUT_MATCH, "prepended": PREPENDING}
SEVEN = nested("normalizers", [DOUBLING] * 7)

ACCEPTED: dict[str, tuple[bytes, str, list[int]]] = {
    "one more byte level": (
        words(normalizer=SEVEN, pre_tokenizer=nested("pretokenizers", [BYTES])),
        "",
        [],
    ),
    "a table": (words(normalizer=replacement_table(MAX_TEXT_GROWTH)), "", []),
    "an added token": (emptied(normalized=False), "é", [7]),
    "100 tokens": (words(post_processor=post_processor(100)), "", [1] * 100),
    "the last of two keys": (repeated_key(nested("normalizers", [DOUBLING] * 9), None), "a", [1]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_file_within_the_limits_is_read(name: str) -> None:
    data, text, ids = ACCEPTED[name]
    assert Tokenizer.from_bytes(data).encode(text) == ids


@pytest.mark.parametrize("part", GROWING.values(), ids=GROWING)
def test_texts_may_grow_up_to_the_limit(part: Any) -> None:
    data = words(normalizer=nested("normalizers", [part] * MOST))
    Tokenizer.from_bytes(data).encode("a")
    data = words(decoder=nested("decoders", [DOUBLING] * MOST))
    assert Tokenizer.from_bytes(data).decode([1]) == "a" * MAX_TEXT_GROWTH


UNKNOWN = [
    {"type": "Growing"},
    {"type": ["Replace"]},
    {"pattern": {"String": "a"}, "content": "aa"},
    {"type": "Sequence", "normalizers": [{"pattern": {"String": "a"}, "content": "aa"}]},
    {"type": "Sequence", "normalizers": [[DOUBLING]]},
    "Replace",
    5,
]

REFUSED: dict[str, bytes] = {
    **{
        f"more than 256-fold, {name}": words(normalizer=nested("normalizers", [part] * (MOST + 1)))
        for name, part in GROWING.items()
    },
    "two byte levels": words(
        normalizer=SEVEN, pre_tokenizer=nested("pretokenizers", [BYTES, BYTES])
    ),
    "decoding": words(decoder=nested("decoders", [DOUBLING] * (MOST + 1))),
    "a longer table": words(normalizer=replacement_table(MAX_TEXT_GROWTH + 1)),
    "the last of two keys": repeated_key(None, nested("normalizers", [DOUBLING] * 9)),
    # the library would allocate the size in the first four bytes, up to 4 GiB
    **{
        f"table {table!r}": words(normalizer=precompiled(table))
        for table in ("", "AA==", "BQAAAAAAAAA=", "AAAA////", "AAAA AAAA", "é", "AAAAA", 5, None)
    },
    **{
        f"{key} of unknown type {number}": words(**{key: part})
        for key in ("normalizer", "pre_tokenizer", "decoder")
        for number, part in enumerate(UNKNOWN)
    },
    "a prefix": with_prefix("a", type="BPE"),
    "a prefix of an unnamed model": with_prefix("é"),
    "an emptied token": emptied(normalized=True),
    "many added tokens": words(post_processor=post_processor(MAX_POST_PROCESSOR_BYTES)),
    **{
        f"broken {data[:20]!r}": data
        for data in (
            b"",
            b"{}",
            b"[]",
            b"null",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"normalizer":' * 5000,
            b'{"model": {"type": "BPE"}}',
            b'{"model": {"type": "Nothing"}}',
            b'{"decoder": 5, "model": {}}',
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(partial(Tokenizer.from_bytes, REFUSED[name])) == snapshot


def test_a_torn_file_or_one_beyond_the_model_is_refused(snapshot: SnapshotAssertion) -> None:
    data = words()
    for length in range(len(data)):
        with pytest.raises(TokenizerError):
            Tokenizer.from_bytes(data[:length])
    Tokenizer.from_bytes(data, model_vocab_size=8)
    assert refusal(lambda: Tokenizer.from_bytes(data, model_vocab_size=7)) == snapshot


def test_the_memory_of_a_vocabulary_is_bounded(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    data = words(model={"type": "Unigram", "unk_id": 0, "vocab": [["ab", -1.0]]})
    read_outline(data)
    monkeypatch.setattr(tokenizer_file, "MAX_UNIGRAM_BYTES", 1)
    assert refusal(lambda: read_outline(data)) == snapshot
    monkeypatch.setattr(tokenizer_file, "MAX_TOKENIZER_BYTES", len(data) - 1)
    assert refusal(lambda: read_outline(data)) == snapshot

"""Long texts: other threads run meanwhile, and those that cannot fit are rejected unread."""

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_decoder import CONTEXT
from tests.runtime.tiny_tokenizers import KINDS, TEXTS, library, ours, saved
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from ortolan.runtime import Decoder
from ortolan.runtime.errors import ContextLengthError
from ortolan.runtime.inputs.token_size import TokenSize
from ortolan.runtime.inputs.token_stream import BYTE_ALPHABET
from ortolan.runtime.inputs.tokenizer import Tokenizer

LONG = "The quick brown fox, naïve. 日本語 " * 9000


@pytest.mark.parametrize("act", ["encode", "encode_with_offsets"])
def test_other_threads_run_during_a_long_call(act: str) -> None:
    tokenizer, ticks, has_ended = ours("byte_level"), [0], threading.Event()

    def tick() -> None:
        while not has_ended.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks[0]
    getattr(tokenizer, act)(LONG)
    during = ticks[0] - before
    has_ended.set()
    thread.join()
    assert during > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 1100])
def test_long_texts_have_the_ids_and_offsets_of_the_library(kind: str, count: int) -> None:
    text = "Hello, naïve  日本 <tool>1" * count
    for flag in (True, False):
        expected = library(kind).encode(text, add_special_tokens=flag).ids
        assert ours(kind).encode(text, add_special_tokens=flag) == expected
    bare = library(kind).encode(text, add_special_tokens=False)
    assert ours(kind).encode_with_offsets(text) == (bare.ids, bare.offsets)
    decoded = library(kind).decode(bare.ids, skip_special_tokens=False)
    assert ours(kind).decode(bare.ids, skip_special_tokens=False) == decoded


def changed(**parts: Any) -> Tokenizer:
    """A tokenizer of bytes with other parts."""
    other = Library.from_str(library("byte_level").to_str())
    for name, part in parts.items():
        setattr(other, name, part)
    return Tokenizer.from_bytes(saved(other))


def stripping() -> Tokenizer:
    other = Library.from_str(library("byte_level").to_str())
    other.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return Tokenizer.from_bytes(saved(other))


def without_controls(other: Library) -> Library:
    """Like SmolLM's: no tokens for some control characters, nor for bytes of rare planes."""
    data = json.loads(other.to_str())
    gone = [letter for letter, byte in BYTE_ALPHABET.items() if byte in (0x04, 0x1D, 0xC0, 0xF2)]
    for letter in gone:
        del data["model"]["vocab"][letter]
    return Library.from_str(json.dumps(data))


BOUNDED = {
    "NFC": changed(normalizer=normalizers.NFC()),
    "NFKC": changed(normalizer=normalizers.NFKC()),
    "Lowercase": changed(normalizer=normalizers.Lowercase()),
    "Replace": changed(normalizer=normalizers.Replace("abcdef", "a")),
    "controls": Tokenizer.from_bytes(saved(without_controls(library("byte_level")))),
}

SPACES = pre_tokenizers.Split(" ", "removed")

UNBOUNDED = {
    "Strip": changed(normalizer=normalizers.Strip()),
    "StripAccents": changed(normalizer=normalizers.StripAccents()),
    "Replace": changed(normalizer=normalizers.Replace("a", "")),
    "Removed": changed(
        pre_tokenizer=pre_tokenizers.Sequence(
            [SPACES, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "lstrip": stripping(),
}

TOKENIZERS = {kind: ours(kind) for kind in KINDS} | BOUNDED


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, times=st.integers(1, 40))
@example("\u03b1\u0313\u0300\u0345", 30)
@example("\u1112\u1161\u11ab", 30)
@example("abcdef", 30)
@example("  ", 40)
@example("\ufffd", 40)
@example("\U000e0041", 40)
@example("\U00090041", 40)
@example("\x04\x1d", 40)
def test_no_text_that_fits_is_rejected(name: str, text: str, times: int) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text * times, add_special_tokens=False)
    tokenizer.check_length(text * times, len(ids))


def test_texts_that_may_vanish_have_no_bound_and_others_are_rejected() -> None:
    for tokenizer in UNBOUNDED.values():
        tokenizer.check_length(" a" * 100_000, 1)
    for tokenizer in (*BOUNDED.values(), ours("byte_level"), ours("sentencepiece")):
        with pytest.raises(ContextLengthError, match="100000 characters has more tokens"):
            tokenizer.check_length("a" * 100_000, 1000)


def test_a_prompt_that_cannot_fit_is_not_encoded(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(model.tokenizer), "_token_size", TokenSize(4.0))
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("encoded"))
    with pytest.raises(ContextLengthError, match=f"the limit of {CONTEXT}"):
        model.generate("a" * 5_000_000)

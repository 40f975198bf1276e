import base64
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.runtime.tiny_tokenizers import KINDS, byte_level, saved
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.limits import MAX_POST_PROCESSOR_BYTES, MAX_TEXT_GROWTH
from ortolan.runtime.tokenizer import Tokenizer

SOURCES = Path(__file__).parents[2] / "src"
STREAMING = ["byte_level", "sentencepiece", "gemma", "metaspace", "wordpiece", "words"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


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
    """Random ids; some in runs that make multi-byte characters, whole or broken."""
    each = st.integers(0, ours(kind).vocab_size - 1)
    texts = TEXTS.map(lambda text: ours(kind).encode(text, add_special_tokens=False))
    cut = st.tuples(texts, st.integers(0, 8), st.integers(0, 8)).map(lambda t: t[0][t[1] :][: t[2]])
    return st.lists(st.one_of(st.lists(each, max_size=4), texts, cut), max_size=6).map(
        lambda parts: list(itertools.chain.from_iterable(parts))
    )


# --- whole texts ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_encode_and_decode_equal_the_library(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    ids = data.draw(tokens_of(kind))
    for flag in (True, False):
        encoded = library(kind).encode(text, add_special_tokens=flag).ids
        assert ours(kind).encode(text, add_special_tokens=flag) == encoded
        decoded = library(kind).decode(ids, skip_special_tokens=flag)
        assert ours(kind).decode(ids, skip_special_tokens=flag) == decoded


@settings(max_examples=200, deadline=None)
@given(TEXTS.map(lambda text: text.replace("é", "")))  # an added token: its letter is a byte
def test_byte_level_decode_restores_any_text(text: str) -> None:
    assert ours("byte_level").decode(ours("byte_level").encode(text)) == text


def test_encode_adds_special_tokens_only_when_asked() -> None:
    tokenizer = ours("byte_level")
    start = id_of("byte_level", "<s>")
    assert tokenizer.encode("Hello")[0] == start
    assert start not in tokenizer.encode("Hello", add_special_tokens=False)


def test_decode_shows_special_tokens_only_when_asked() -> None:
    ids = ours("byte_level").encode("Hello")
    assert ours("byte_level").decode(ids) == "Hello"
    assert ours("byte_level").decode(ids, skip_special_tokens=False) == "<s>Hello"


def test_truncation_and_padding_of_the_file_are_left_out() -> None:
    tiny = byte_level()
    plain = tiny.encode("Hello, Hello").ids
    tiny.enable_truncation(2)
    tiny.enable_padding(length=1000)
    assert Tokenizer.from_bytes(saved(tiny)).encode("Hello, Hello") == plain


def test_vocab_size_is_one_more_than_the_highest_id_with_gaps() -> None:
    assert ours("words").vocab_size == 8
    assert ours("byte_level").vocab_size == library("byte_level").get_vocab_size()


def test_padding_of_the_model_has_no_text() -> None:
    tokenizer = Tokenizer.from_bytes(saved(library("words")), model_vocab_size=16)
    assert tokenizer.vocab_size == 16
    assert tokenizer.decode([1, 15, 1]) == "a a"
    stream = tokenizer.stream()
    assert [stream.push(1), stream.push(15), stream.push(1)] == ["a", "", " a"]


# --- streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_stream_of_any_ids_joins_to_the_decoded_text(kind: str, data: st.DataObject) -> None:
    ids = data.draw(tokens_of(kind))
    for skip in (True, False):
        expected = library(kind).decode(ids, skip_special_tokens=skip)
        assert "".join(pieces(kind, ids, skip_special_tokens=skip)) == expected


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "gemma"])
def test_stream_of_every_character_has_no_half_characters(kind: str) -> None:
    # all of Unicode is minutes long: each edge of the encoding, and a sample in between
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFC, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF]
    codes = [*edges, *(c for c in range(1, 0x110000, 211) if not 0xD800 <= c < 0xE000)]
    text = "".join(map(chr, codes)).replace("\ufffd", "")
    ids = ours(kind).encode(text, add_special_tokens=False)
    streamed = pieces(kind, ids)
    assert "".join(streamed) == library(kind).decode(ids) == text
    assert not any("\ufffd" in piece for piece in streamed)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "gemma"])
def test_character_over_several_tokens_comes_whole(kind: str) -> None:
    ids = ours(kind).encode("l🦜l", add_special_tokens=False)
    assert len(ids) >= 5
    assert {piece for piece in pieces(kind, ids) if piece} <= {"l", "🦜", "🦜l"}


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_genuine_replacement_character_is_streamed_at_once(kind: str) -> None:
    token = id_of(kind, "\ufffd")
    streamed = pieces(kind, [token, token])
    assert streamed[:2] == ["\ufffd", "\ufffd"]


def test_invalid_bytes_stream_as_the_library_decodes_them() -> None:
    letters = {text: token for text, token in library("byte_level").get_vocab().items()}
    alphabet = [letters[letter] for letter in sorted(pre_tokenizers.ByteLevel.alphabet())]
    shuffled = random.Random(0)
    for length in (1, 2, 3, 5, 8):
        for _ in range(400):
            ids = shuffled.choices(alphabet, k=length)
            assert "".join(pieces("byte_level", ids)) == library("byte_level").decode(ids)


def test_every_pair_of_bytes_streams_as_the_library_decodes_it() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    alphabet = [id_of("byte_level", letter) for letter in letters]
    high = [token for token in alphabet if library("byte_level").decode([token]) == "\ufffd"]
    assert len(high) == 128
    for pair in itertools.product(high, high):
        assert "".join(pieces("byte_level", pair)) == library("byte_level").decode(list(pair))


def test_run_of_bytes_with_a_late_error_is_decoded_as_a_whole() -> None:
    run = [id_of("sentencepiece", f"<0x{byte:02X}>") for byte in "🙂".encode() + b"\xff"]
    end = id_of("sentencepiece", "H")
    assert pieces("sentencepiece", [*run, end])[-2] == "\ufffd" * 5 + "H"
    assert pieces("sentencepiece", run)[-1] == "\ufffd" * 5


def test_space_before_the_first_word_is_dropped_once() -> None:
    ids = ours("sentencepiece").encode("  wo  w")
    assert "".join(pieces("sentencepiece", ids)) == "  wo  w"
    space = id_of("sentencepiece", "▁")
    assert pieces("sentencepiece", [space] * 4) == ["", " ", " ", " ", ""]


@pytest.mark.parametrize("kind", STREAMING)
def test_known_decoders_hold_back_at_most_a_character(kind: str) -> None:
    text = "Hello" if kind != "words" else "a a a"
    ids = ours(kind).encode(text, add_special_tokens=False)
    streamed = pieces(kind, ids)
    assert streamed[-1] == ""
    assert all(streamed[1:-1])


@pytest.mark.parametrize("kind", ["suffixed", "rewriting"])
def test_decoders_that_look_ahead_give_their_text_at_the_end(kind: str) -> None:
    ids = [1, 2, 1, 2]
    assert pieces(kind, ids) == ["", "", "", "", library(kind).decode(ids)]


@pytest.mark.parametrize("kind", KINDS)
def test_flush_starts_a_new_text(kind: str) -> None:
    stream = ours(kind).stream()
    ids = [token for token in range(ours(kind).vocab_size) if token % 7 == 1]
    first = "".join([*map(stream.push, ids), stream.flush()])
    assert "".join([*map(stream.push, ids), stream.flush()]) == first
    assert stream.flush() == ""


@pytest.mark.parametrize("kind", STREAMING)
def test_work_for_a_token_does_not_grow_with_the_text(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_bytes(saved(library(kind)))
    widest = 0
    decode = tokenizer._decode

    def watched(ids: list[int], *, skip_special_tokens: bool) -> str:
        nonlocal widest
        widest = max(widest, len(ids))
        return decode(ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "_decode", watched)
    stream = tokenizer.stream()
    for token in tokenizer.encode("a Hello world 🙂 " * 50, add_special_tokens=False):
        stream.push(token)
    assert widest <= 8


SPACES = decoders.Replace("▁", " ")


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ([SPACES, decoders.Fuse(), decoders.Strip(" ", 3, 0)], ["▁"] * 5 + ["H"]),
        ([SPACES, decoders.Fuse(), decoders.Strip(" ", 0, 2)], ["H", "▁", "▁", "▁"]),
        (
            [SPACES, decoders.Strip(" ", 1, 0), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
            ["▁▁", "▁", "▁▁"],
        ),
        (
            [
                decoders.Replace("H", ""),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ],
            ["o", "H", "<0x20>", "o"],
        ),
    ],
)
def test_decoder_that_looks_further_than_one_token_is_not_streamed(
    parts: list[Any], texts: list[str]
) -> None:
    tiny = Library.from_str(library("sentencepiece").to_str())
    tiny.decoder = decoders.Sequence(parts)
    ids = [id_of("sentencepiece", text) for text in texts]
    stream = Tokenizer.from_bytes(saved(tiny)).stream()
    assert "".join([*map(stream.push, ids), stream.flush()]) == tiny.decode(ids)


decoder_parts = st.lists(
    st.sampled_from(
        [
            decoders.Replace("▁", " "),
            decoders.Replace("▁", ""),
            decoders.Replace("l", "<0x"),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
            decoders.Strip(" ", 0, 1),
            decoders.Strip(" ", 3, 0),
            decoders.Metaspace(),
            decoders.WordPiece("l"),
            decoders.ByteLevel(),
            decoders.CTC("l", "o"),
            decoders.BPEDecoder("o"),
        ]
    ),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(parts=decoder_parts, data=st.data())
def test_any_sequence_of_decoders_joins_to_the_decoded_text(
    parts: list[Any], data: st.DataObject
) -> None:
    tiny = Library.from_str(library("sentencepiece").to_str())
    tiny.decoder = decoders.Sequence(parts)
    ids = data.draw(tokens_of("sentencepiece"))
    tokenizer = Tokenizer.from_bytes(saved(tiny))
    try:
        expected = tokenizer.decode(ids)
    except TokenizerError:
        reject()  # some decoders panic when one before them leaves no token
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.flush()]) == expected


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "\udc00\ud800"])
def test_lone_surrogate_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(
        TokenizerError, match=f"index {min(len(text) - 1, 2) if 'a' in text else 0}"
    ):
        ours("byte_level").encode(text)


@pytest.mark.parametrize("text", [None, b"bytes", 5, ["a"]])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(TokenizerError, match="expected a str"):
        ours("byte_level").encode(text)


@pytest.mark.parametrize("token", [-1, 8, 2**32, 2**70, 1.5, "1", None])
def test_id_out_of_range_is_refused(token: Any) -> None:
    tokenizer = ours("words")
    with pytest.raises(TokenizerError, match="from 0 to 7"):
        tokenizer.decode([1, token])
    stream = tokenizer.stream()
    assert stream.push(1) == "a"
    with pytest.raises(TokenizerError, match="from 0 to 7"):
        stream.push(token)
    assert stream.push(1) == " a"


def test_ids_of_numpy_are_taken() -> None:
    assert ours("words").decode(np.array([1, 1])) == "a a"


def test_id_beyond_the_model_is_refused() -> None:
    Tokenizer.from_bytes(saved(library("words")), model_vocab_size=8)
    with pytest.raises(TokenizerError, match="below the model's 7, got 7"):
        Tokenizer.from_bytes(saved(library("words")), model_vocab_size=7)


@pytest.mark.parametrize(
    "data",
    [
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
    ],
)
def test_broken_file_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_bytes(data)


def test_torn_file_is_refused_at_every_length() -> None:
    data = saved(library("words"))
    for length in range(len(data)):
        with pytest.raises(TokenizerError):
            Tokenizer.from_bytes(data[:length])


def test_panic_of_the_library_is_a_tokenizer_error(capfd: pytest.CaptureFixture[str]) -> None:
    tiny = Library(models.WordLevel({"a": 0}, unk_token="a"))
    tiny.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer.from_bytes(saved(tiny))
    with pytest.raises(TokenizerError) as caught:
        tokenizer.encode("a" * 40 + "b")
    assert type(caught.value.__cause__).__name__ == "PanicException"
    assert "panicked" in capfd.readouterr().err


def test_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_bytes(saved(library("words")))

    class Interrupted:
        def encode(self, text: str, *, add_special_tokens: bool) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "_library", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")


# --- what would exhaust the memory ----------------------------------------------------------

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
WITHOUT_MATCH = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a"}
PREPENDING = {"type": "Prepend", "prepend": "a"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def nested(kind: str, parts: list[Any]) -> dict[str, Any]:
    """A Sequence that holds its last part in a Sequence of its own."""
    last = {"type": "Sequence", kind: parts[-1:]}
    return {"type": "Sequence", kind: [*parts[:-1], last]}


@pytest.mark.parametrize("part", [DOUBLING, WITHOUT_MATCH, PREPENDING])
def test_growth_while_encoding_is_taken_at_the_limit_and_refused_beyond(part: Any) -> None:
    most = MAX_TEXT_GROWTH.bit_length() - 1
    at_limit = saved(library("words"), normalizer=nested("normalizers", [part] * most))
    Tokenizer.from_bytes(at_limit).encode("a")
    beyond = saved(library("words"), normalizer=nested("normalizers", [part] * (most + 1)))
    with pytest.raises(TokenizerError, match="encoding to lengthen text at most 256-fold"):
        Tokenizer.from_bytes(beyond)


def test_growth_adds_up_over_normalizer_and_pre_tokenizer() -> None:
    normalizer = nested("normalizers", [DOUBLING] * 7)
    one = nested("pretokenizers", [BYTES])
    two = nested("pretokenizers", [BYTES, BYTES])
    Tokenizer.from_bytes(saved(library("words"), normalizer=normalizer, pre_tokenizer=one))
    with pytest.raises(TokenizerError, match="encoding"):
        Tokenizer.from_bytes(saved(library("words"), normalizer=normalizer, pre_tokenizer=two))


def test_growth_while_decoding_is_taken_at_the_limit_and_refused_beyond() -> None:
    at_limit = saved(library("words"), decoder=nested("decoders", [DOUBLING] * 8))
    assert Tokenizer.from_bytes(at_limit).decode([1]) == "a" * 256
    with pytest.raises(TokenizerError, match="decoding to lengthen text at most 256-fold"):
        Tokenizer.from_bytes(saved(library("words"), decoder=nested("decoders", [DOUBLING] * 9)))


@pytest.mark.parametrize(("length", "is_taken"), [(256, True), (257, False)])
def test_table_of_replacements_is_bounded_by_its_longest_text(length: int, is_taken: bool) -> None:
    trie = bytes(8)
    table = len(trie).to_bytes(4, "little") + trie + b"ab\0" + b"a" * length + b"\0"
    encoded = base64.b64encode(table).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": encoded}
    data = saved(library("words"), normalizer=normalizer)
    if is_taken:
        Tokenizer.from_bytes(data)
    else:
        with pytest.raises(TokenizerError, match="256-fold"):
            Tokenizer.from_bytes(data)


@pytest.mark.parametrize("table", ["", "AA==", "BQAAAAAAAAA=", "AAAA////", "é", "AAAAA", 5, None])
def test_torn_table_of_replacements_is_refused(table: Any) -> None:
    # the library would allocate the size that the first four bytes give, here up to 4 GiB
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_bytes(saved(library("words"), normalizer=normalizer))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "Growing"},
        {"type": ["Replace"]},
        {"pattern": {"String": "a"}, "content": "aa"},
        {"type": "Sequence", "normalizers": [{"pattern": {"String": "a"}, "content": "aa"}]},
        {"type": "Sequence", "normalizers": [[DOUBLING]]},
        "Replace",
        5,
    ],
)
@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer", "decoder"])
def test_component_of_unknown_type_is_refused(key: str, part: Any) -> None:
    with pytest.raises(TokenizerError, match="components of known types"):
        Tokenizer.from_bytes(saved(library("words"), **{key: part}))


@pytest.mark.parametrize("kind", [{"type": "BPE"}, {}])
def test_prefix_inside_the_words_of_a_bpe_model_is_refused(kind: dict[str, str]) -> None:
    model = json.loads(library("byte_level").to_str())["model"]
    del model["type"]
    for prefix in ("a", "é"):
        changed = {**model, **kind, "continuing_subword_prefix": prefix}
        with pytest.raises(TokenizerError, match="continuing_subword_prefix"):
            Tokenizer.from_bytes(saved(library("byte_level"), model=changed))


def test_added_token_that_the_normalizer_empties_is_refused() -> None:
    emptied = {"type": "Replace", "pattern": {"String": "é"}, "content": ""}
    token = {"id": 7, "content": "é", "single_word": False, "lstrip": False, "rstrip": False}
    plain = {**token, "normalized": False, "special": False}
    data = saved(library("words"), normalizer=emptied, added_tokens=[plain])
    assert Tokenizer.from_bytes(data).encode("é") == [7]
    data = saved(library("words"), normalizer=emptied, added_tokens=[{**plain, "normalized": True}])
    with pytest.raises(TokenizerError, match="normalizer leaves something of, got 'é'"):
        Tokenizer.from_bytes(data)


def test_tokens_that_a_post_processor_adds_are_bounded() -> None:
    def with_tokens(count: int) -> dict[str, Any]:
        return {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "a", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"a": {"id": "a", "ids": [1] * count, "tokens": ["a"] * count}},
        }

    few = saved(library("words"), post_processor=with_tokens(100))
    assert Tokenizer.from_bytes(few).encode("") == [1] * 100
    many = saved(library("words"), post_processor=with_tokens(MAX_POST_PROCESSOR_BYTES))
    with pytest.raises(TokenizerError, match="post_processor of at most 16384 bytes"):
        Tokenizer.from_bytes(many)


def test_last_of_equal_keys_counts_as_in_the_library() -> None:
    harmless, harmful = json.dumps(None), json.dumps(nested("normalizers", [DOUBLING] * 9))
    plain = saved(library("words"))[:-1].decode()
    Tokenizer.from_bytes(f'{plain}, "normalizer": {harmful}, "normalizer": {harmless}}}'.encode())
    with pytest.raises(TokenizerError, match="256-fold"):
        Tokenizer.from_bytes(
            f'{plain}, "normalizer": {harmless}, "normalizer": {harmful}}}'.encode()
        )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_altered_file_loads_or_is_refused(data: st.DataObject) -> None:
    original = saved(library("sentencepiece"))
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        tokenizer = Tokenizer.from_bytes(bytes(content))
        tokenizer.encode("Hello é")
    except TokenizerError:
        pass


# --- the process ----------------------------------------------------------------------------


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        input=saved(library("byte_level")).decode(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_fork_after_use_warns_of_nothing() -> None:
    done = run(
        "import os, sys\n"
        "from ortolan.runtime.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.from_bytes(sys.stdin.buffer.read())\n"
        "ids = tokenizer.encode('Hello ' * 1000)\n"
        "child = os.fork()\n"
        "assert tokenizer.decode(tokenizer.encode('Hello')) == 'Hello'\n"
        "if not child: os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_import_and_use_open_no_socket_and_load_no_torch() -> None:
    done = run(
        "import sys\n"
        "sys.addaudithook(lambda name, _: print(name) if name.startswith('socket') else None)\n"
        "from ortolan.runtime.tokenizer import Tokenizer\n"
        "Tokenizer.from_bytes(sys.stdin.buffer.read()).encode('Hello')\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    assert done.stdout == "[]\n"

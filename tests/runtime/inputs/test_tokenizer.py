from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.test_import import run
from tests.runtime.tiny_tokenizers import (
    KINDS,
    TEXTS,
    byte_level,
    id_of,
    library,
    ours,
    saved,
    tokens_of,
)
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import Tokenizer


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
    # a text may contain the characters of a special token
    ids = ours("byte_level").encode(text, add_special_tokens=False)
    assert ours("byte_level").decode(ids, skip_special_tokens=False) == text


def test_encode_adds_special_tokens_by_default() -> None:
    tokenizer = ours("byte_level")
    start = id_of("byte_level", "<s>")
    assert tokenizer.encode("Hello")[0] == start
    assert start not in tokenizer.encode("Hello", add_special_tokens=False)


def test_an_id_that_only_the_post_processor_has_is_refused() -> None:
    changed = Library.from_str(library("byte_level").to_str())
    beyond = changed.get_vocab_size()
    changed.post_processor = processors.TemplateProcessing(
        single="[FAR] $A", special_tokens=[("[FAR]", beyond)]
    )
    tokenizer = Tokenizer.from_bytes(changed.to_str().encode())
    assert tokenizer.encode("Hello", add_special_tokens=False)
    with pytest.raises(TokenizerError, match=f"id {beyond}"):
        tokenizer.encode("Hello")


def test_decode_skips_special_tokens_by_default() -> None:
    ids = ours("byte_level").encode("Hello")
    assert ours("byte_level").decode(ids) == "Hello"
    assert ours("byte_level").decode(ids, skip_special_tokens=False) == "<s>Hello"


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
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


# --- errors ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\ud800", "index 0"),
        ("ab\udfff", "index 2"),
        ("\udc00\ud800", "index 0"),
        (None, "NoneType"),
        (b"bytes", "bytes"),
        (5, "int"),
        (["a"], "list"),
    ],
)
def test_anything_but_unicode_text_is_refused(text: Any, words: str) -> None:
    with pytest.raises(TokenizerError, match=words):
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


def test_numpy_ids_are_decoded() -> None:
    assert ours("words").decode(np.array([1, 1])) == "a a"


def test_id_beyond_the_model_is_refused() -> None:
    Tokenizer.from_bytes(saved(library("words")), model_vocab_size=8)
    with pytest.raises(TokenizerError, match="ids up to 7"):
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


def test_a_truncated_file_is_refused_at_every_length() -> None:
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


def test_an_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_bytes(saved(library("words")))

    class Interrupted:
        def encode(self, text: str, **_: bool) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "_library", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")


# --- the process ---


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A tokenizer in a file."""
    (tmp_path / "tokenizer.json").write_bytes(saved(library("byte_level")))
    return str(tmp_path / "tokenizer.json")


def test_a_fork_after_use_prints_no_warning(path: str) -> None:
    done = run(
        "import os, sys\n"
        "from ortolan.runtime.inputs.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.from_bytes(open(sys.argv[1], 'rb').read())\n"
        "ids = tokenizer.encode('Hello ' * 1000)\n"
        "child = os.fork()\n"
        "assert tokenizer.decode(tokenizer.encode('Hello')) == 'Hello'\n"
        "if not child: os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
        path,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_tokenizer_opens_no_socket_and_loads_no_torch(path: str) -> None:
    done = run(
        "import sys\n"
        "sys.addaudithook(lambda name, _: print(name) if name.startswith('socket') else None)\n"
        "from ortolan.runtime.inputs.tokenizer import Tokenizer\n"
        "Tokenizer.from_bytes(open(sys.argv[1], 'rb').read()).encode('Hello')\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n",
        path,
    )
    assert done.stdout == "[]\n"


# --- starts and labels -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_encode_start_equals_truncation_by_the_library(kind: str, data: st.DataObject) -> None:
    added = len(library(kind).encode("").ids)
    text, most = data.draw(TEXTS), data.draw(st.integers(added + 1, 40))
    truncating = Library.from_str(saved(library(kind)).decode())
    truncating.enable_truncation(most)

    assert ours(kind).encode_start(text, max_tokens=most) == truncating.encode(text).ids


def test_encode_start_without_room_is_refused() -> None:
    assert ours("byte_level").encode_start("", max_tokens=1) == ours("byte_level").encode("")
    with pytest.raises(TokenizerError, match="room"):
        ours("byte_level").encode_start("Hello", max_tokens=1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_every_token_has_a_label(kind: str, data: st.DataObject) -> None:
    ids = data.draw(tokens_of(kind))
    labels = ours(kind).labels(ids)

    assert len(labels) == len(ids)
    assert all(labels)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("byte_level", ["<s>", "␣", "Hell", "o", "Ã", "¼"]),  # a space, and the two bytes of ü
        ("sentencepiece", ["␣", "He", "ll", "o", "<0xC3>", "<0xBC>"]),
        ("wordpiece", ["hello", "##u"]),
    ],
)
def test_labels_are_texts_or_vocabulary_entries(kind: str, labels: list[str]) -> None:
    assert ours(kind).labels(ours(kind).encode(" Helloü")) == labels


def test_label_of_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError):
        ours("byte_level").labels([10**6])

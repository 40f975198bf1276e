"""Tokenizers against the library that reads their file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.bundle.manifests import document_of, read
from tests.runtime.test_import import run
from tests.runtime.tiny_tokenizers import (
    CORPUS,
    KINDS,
    TEXTS,
    byte_level,
    library,
    metaspace,
    ours,
    saved,
    tokens_of,
)
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.text_reader import TextReader
from ortolan.runtime.inputs.tokenizer import Tokenizer


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_encode_and_decode_equal_the_library(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    ids = data.draw(tokens_of(kind))
    assert ours(kind).encode(text) == library(kind).encode(text).ids
    assert ours(kind).decode(np.array(ids, np.int64)) == library(kind).decode(ids)
    labels = ours(kind).labels(ids)
    assert len(labels) == len(ids)
    assert all(labels)
    for flag in (True, False):
        encoded = library(kind).encode(text, add_special_tokens=flag).ids
        assert ours(kind).encode(text, add_special_tokens=flag) == encoded
        decoded = library(kind).decode(ids, skip_special_tokens=flag)
        assert ours(kind).decode(ids, skip_special_tokens=flag) == decoded


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


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    tiny = byte_level()
    plain = tiny.encode("Hello, Hello").ids
    tiny.enable_truncation(2)
    tiny.enable_padding(length=1000)
    assert Tokenizer.from_bytes(saved(tiny)).encode("Hello, Hello") == plain


def test_padding_of_the_model_has_no_text() -> None:
    assert ours("words").vocab_size == 8  # one more than the highest id, with gaps
    tokenizer = Tokenizer.from_bytes(saved(library("words")), model_vocab_size=16)
    assert tokenizer.vocab_size == 16
    assert tokenizer.decode([1, 15, 1]) == "a a"
    stream = tokenizer.stream()
    assert [stream.push(1), stream.push(15), stream.push(1)] == ["a", "", " a"]


# --- spans, windows and pairs -----------------------------------------------------------------

# With add_prefix_space the library keeps the space before the first token of each window.
AROUND: dict[str, Callable[..., Any]] = {
    "template": lambda first, last: processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", first), ("</s>", last)],
    ),
    "trimmed": lambda first, last: processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
    "kept": lambda first, last: processors.ByteLevel(trim_offsets=False),
    "roberta": lambda first, last: processors.RobertaProcessing(
        ("</s>", last), ("<s>", first), trim_offsets=True, add_prefix_space=False
    ),
}
PHRASES = st.lists(st.sampled_from([*" \n<,", *" ".join(CORPUS).split()])).map(" ".join)


def around(kind: str, name: str) -> Library:
    changed = Library.from_str(library(kind).to_str())
    changed.add_special_tokens(["<s>", "</s>"])
    changed.post_processor = AROUND[name](*(changed.get_vocab()[text] for text in ("<s>", "</s>")))
    return changed


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(text=PHRASES, most=st.integers(4, 30))
def test_spans_of_a_cut_text_are_those_of_the_library(
    kind: str, name: str, text: str, most: int
) -> None:
    reference = around(kind, name)
    tokenizer = Tokenizer.from_bytes(reference.to_str().encode())
    reference.enable_truncation(most)
    expected = reference.encode(text)

    ids = tokenizer.encode_spans(text, max_tokens=most)

    assert ids == tokenizer.encode(text, max_tokens=most) == expected.ids
    places = [None if span is None else (span.start, span.end) for span in ids.spans]
    rows = zip(expected.offsets, expected.special_tokens_mask, strict=True)
    assert places == [None if special else place for place, special in rows]


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(text=PHRASES)
def test_words_of_windows_are_those_of_the_library(kind: str, name: str, text: str) -> None:
    reference = around(kind, name)
    tokenizer = Tokenizer.from_bytes(reference.to_str().encode())
    question = "The fox"
    most = len(reference.encode(question).ids) + 12
    reference.enable_truncation(most, stride=4, strategy="only_second")
    first = reference.encode(question, text)

    windows = tokenizer.pair_windows(question, text, max_tokens=most, stride=4)

    for window, expected in zip(windows, [first, *first.overflowing], strict=True):
        assert list(window) == expected.ids
        for token, word in enumerate(window.words):
            number = expected.word_ids[token]
            if expected.sequence_ids[token] != 1:
                assert word is None
            elif number is not None and expected.word_to_chars(number, 1) is not None:
                assert word == expected.word_to_chars(number, 1)
            else:
                assert word == expected.offsets[token]


def test_an_unknown_unigram_token_begins_a_word() -> None:
    unigram = metaspace()
    tokenizer = Tokenizer.from_bytes(unigram.to_str().encode())
    text = "fox\N{SNOWMAN}quick"

    ids = tokenizer.encode_spans(text)

    unknown = unigram.token_to_id("<unk>")
    assert unknown is not None
    span = ids.spans[ids.index(unknown)]
    assert span is not None
    assert (text[span.start : span.end], span.continues_word) == ("\N{SNOWMAN}", False)


TEMPLATES = {
    "bert": "<s> $A </s> $B:1 </s>:1",
    "roberta": "<s> $A </s> </s> $B </s>",
}


def with_template(name: str) -> Library:
    changed = Library.from_str(library("byte_level").to_str())
    start, end = changed.token_to_id("<s>"), changed.token_to_id("</s>")
    changed.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair=TEMPLATES[name],
        special_tokens=[("<s>", start), ("</s>", end)],
    )
    return changed


def paired(name: str) -> Tokenizer:
    return Tokenizer.from_bytes(with_template(name).to_str().encode())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(first=TEXTS, second=TEXTS)
def test_ids_of_a_pair_are_those_of_the_library(kind: str, first: str, second: str) -> None:
    ids = ours(kind).encode_pair(first, second)
    assert ids == library(kind).encode(first, second).ids


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=80, deadline=None)
@given(
    first=st.text("ab c", max_size=40), second=st.text("ab c", max_size=40), most=st.integers(6, 50)
)
def test_truncated_pairs_are_those_of_the_library(
    name: str, first: str, second: str, most: int
) -> None:
    tokenizer, reference = paired(name), with_template(name)
    reference.enable_truncation(most, strategy="longest_first")
    cut = tokenizer.encode_pair(first, second, max_tokens=most)
    assert cut == reference.encode(first, second).ids
    assert len(cut) <= most


def text_reader(tokenizer: Tokenizer) -> TextReader:
    return TextReader(TextSource(max_tokens=512), read(document_of("encoder")), tokenizer)


# --- errors -----------------------------------------------------------------------------------

NO_TEXTS: list[Any] = ["\ud800", "ab\udfff", "\udc00\ud800", None, b"bytes", 5, ["a"]]

REFUSED: dict[str, Callable[[], object]] = {
    **{f"{text!r}": partial(ours("byte_level").encode, text) for text in NO_TEXTS},
    "a label beyond the vocabulary": lambda: ours("byte_level").labels([10**6]),
    "no room": lambda: ours("byte_level").encode("Hello", max_tokens=1),
    "no room for a pair": lambda: paired("roberta").encode_pair("a", "b", max_tokens=5),
    "a surrogate in a pair": lambda: paired("roberta").encode_pair("a", "\ud800"),
    "types of a pair": lambda: text_reader(paired("bert")).read(("a", "b")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(REFUSED[name]) == snapshot


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


# --- labels -----------------------------------------------------------------------------------


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

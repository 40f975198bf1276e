import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_tokenizers import KINDS, TEXTS, library, ours, saved, tokens_of
from tokenizers import Tokenizer as Library

from ortolan.runtime.errors import TokenizerError


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

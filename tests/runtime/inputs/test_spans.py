"""Characters of tokens, compared with what one call of the library returns."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_tokenizers import CORPUS, KINDS, library, metaspace
from tokenizers import Tokenizer as Library
from tokenizers import processors

from ortolan.runtime.inputs.tokenizer import Tokenizer

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
TEXTS = st.lists(st.sampled_from([*" \n<,", *" ".join(CORPUS).split()])).map(" ".join)


def around(kind: str, name: str) -> Library:
    changed = Library.from_str(library(kind).to_str())
    changed.add_special_tokens(["<s>", "</s>"])
    changed.post_processor = AROUND[name](*(changed.get_vocab()[text] for text in ("<s>", "</s>")))
    return changed


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(text=TEXTS, most=st.integers(4, 30))
def test_spans_of_a_cut_text_are_those_of_the_library(
    kind: str, name: str, text: str, most: int
) -> None:
    reference = around(kind, name)
    tokenizer = Tokenizer.from_bytes(reference.to_str().encode())
    reference.enable_truncation(most)
    expected = reference.encode(text)

    ids, spans = tokenizer.encode_spans(text, max_tokens=most)

    assert ids == expected.ids
    places = [None if span is None else (span.start, span.end) for span in spans]
    rows = zip(expected.offsets, expected.special_tokens_mask, strict=True)
    assert places == [None if special else place for place, special in rows]


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(text=TEXTS)
def test_words_of_windows_are_those_of_the_library(kind: str, name: str, text: str) -> None:
    reference = around(kind, name)
    tokenizer = Tokenizer.from_bytes(reference.to_str().encode())
    question = "The fox"
    most = len(reference.encode(question).ids) + 12
    reference.enable_truncation(most, stride=4, strategy="only_second")
    first = reference.encode(question, text)

    windows = tokenizer.pair_windows(question, text, max_tokens=most, stride=4)

    for window, expected in zip(windows, [first, *first.overflowing], strict=True):
        assert window.ids == expected.ids
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

    ids, spans = tokenizer.encode_spans(text)

    unknown = unigram.token_to_id("<unk>")
    assert unknown is not None
    span = spans[ids.index(unknown)]
    assert span is not None
    assert (text[span.start : span.end], span.continues_word) == ("\N{SNOWMAN}", False)

"""Pairs of texts as one input, compared with the library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_tokenizers import KINDS, TEXTS, library, ours
from tokenizers import Tokenizer as Library
from tokenizers import processors

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import Tokenizer

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


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(first=TEXTS, second=TEXTS)
def test_ids_of_a_pair_are_those_of_the_library(kind: str, first: str, second: str) -> None:
    ids = ours(kind).encode_pair(first, second, has_types=False)
    assert ids == library(kind).encode(first, second).ids


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=150, deadline=None)
@given(
    first=st.text("ab c", max_size=40), second=st.text("ab c", max_size=40), most=st.integers(6, 50)
)
def test_truncated_pairs_are_those_of_the_library(
    name: str, first: str, second: str, most: int
) -> None:
    reference = with_template(name)
    tokenizer = Tokenizer.from_bytes(reference.to_str().encode())
    assert (
        tokenizer.encode_pair(first, second, has_types=False) == reference.encode(first, second).ids
    )
    reference.enable_truncation(most, strategy="longest_first")
    cut = tokenizer.encode_pair(first, second, max_tokens=most, has_types=False)
    assert cut == reference.encode(first, second).ids
    assert len(cut) <= most


def test_too_few_tokens_and_lone_surrogates_are_errors() -> None:
    tokenizer = Tokenizer.from_bytes(with_template("roberta").to_str().encode())
    with pytest.raises(TokenizerError, match="5 tokens leave no room"):
        tokenizer.encode_pair("a", "b", max_tokens=5)
    with pytest.raises(TokenizerError, match="surrogate"):
        tokenizer.encode_pair("a", "\ud800")


def test_type_ids_are_an_error_where_a_model_may_depend_on_them() -> None:
    tokenizer = Tokenizer.from_bytes(with_template("bert").to_str().encode())
    with pytest.raises(TokenizerError, match="type ids"):
        tokenizer.encode_pair("a", "b")

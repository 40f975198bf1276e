"""Tokenizers trained on the text of a recipe."""

import pytest
from tests.modeling.training.recipes import LINE

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.tokenizer import byte_level_bpe, encode


def test_a_document_is_the_special_token_and_the_text() -> None:
    texts = (LINE * 5, "naïve 漢字\n")
    tokenizer = byte_level_bpe(texts, vocab_size=280, special_tokens=["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    for ids, text in zip(encode(tokenizer, texts, "<|endoftext|>"), texts, strict=True):
        assert ids[0] == end
        assert end not in ids[1:]
        assert tokenizer.decode(ids[1:]) == text
    with pytest.raises(RecipeError, match="<s>"):
        encode(tokenizer, texts, "<s>")


def test_no_token_spans_two_pieces() -> None:
    tokenizer = byte_level_bpe(
        ["year 2023 2023 2023 2023"] * 9, vocab_size=400, special_tokens=[], pieces=r" ?[a-z]+|\d| "
    )
    assert tokenizer.encode("year 2023").tokens == ["year", "Ġ", "2", "0", "2", "3"]


def test_an_invalid_regular_expression_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"tokenizer\.pieces"):
        byte_level_bpe([LINE], vocab_size=400, special_tokens=[], pieces="(")

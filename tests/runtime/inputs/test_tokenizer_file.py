import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


@pytest.mark.parametrize("part", [DOUBLING, WITHOUT_MATCH, PREPENDING])
def test_growth_in_encoding_is_bounded(part: Any) -> None:
    most = MAX_TEXT_GROWTH.bit_length() - 1
    at_limit = saved(library("words"), normalizer=nested("normalizers", [part] * most))
    Tokenizer.from_bytes(at_limit).encode("a")
    beyond = saved(library("words"), normalizer=nested("normalizers", [part] * (most + 1)))
    with pytest.raises(TokenizerError, match=r"encoding .* 256-fold"):
        Tokenizer.from_bytes(beyond)


def test_growth_multiplies_over_normalizer_and_pre_tokenizer() -> None:
    normalizer = nested("normalizers", [DOUBLING] * 7)
    one = nested("pretokenizers", [BYTES])
    two = nested("pretokenizers", [BYTES, BYTES])
    Tokenizer.from_bytes(saved(library("words"), normalizer=normalizer, pre_tokenizer=one))
    with pytest.raises(TokenizerError, match="encoding"):
        Tokenizer.from_bytes(saved(library("words"), normalizer=normalizer, pre_tokenizer=two))


def test_growth_in_decoding_is_bounded() -> None:
    at_limit = saved(library("words"), decoder=nested("decoders", [DOUBLING] * 8))
    assert Tokenizer.from_bytes(at_limit).decode([1]) == "a" * 256
    with pytest.raises(TokenizerError, match=r"decoding .* 256-fold"):
        Tokenizer.from_bytes(saved(library("words"), decoder=nested("decoders", [DOUBLING] * 9)))


@pytest.mark.parametrize(("length", "is_taken"), [(256, True), (257, False)])
def test_growth_by_a_replacement_table_is_bounded(length: int, is_taken: bool) -> None:
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
def test_a_truncated_replacement_table_is_refused(table: Any) -> None:
    # the library would allocate the size in the first four bytes, up to 4 GiB
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
def test_a_component_of_unknown_type_is_refused(key: str, part: Any) -> None:
    with pytest.raises(TokenizerError, match="unknown type"):
        Tokenizer.from_bytes(saved(library("words"), **{key: part}))


@pytest.mark.parametrize("kind", [{"type": "BPE"}, {}])
def test_a_subword_prefix_of_a_bpe_model_is_refused(kind: dict[str, str]) -> None:
    model = json.loads(library("byte_level").to_str())["model"]
    del model["type"]
    for prefix in ("a", "é"):
        changed = {**model, **kind, "continuing_subword_prefix": prefix}
        with pytest.raises(TokenizerError, match="continuing_subword_prefix"):
            Tokenizer.from_bytes(saved(library("byte_level"), model=changed))


def test_an_added_token_that_the_normalizer_empties_is_refused() -> None:
    emptied = {"type": "Replace", "pattern": {"String": "é"}, "content": ""}
    token = {"id": 7, "content": "é", "single_word": False, "lstrip": False, "rstrip": False}
    plain = {**token, "normalized": False, "special": False}
    data = saved(library("words"), normalizer=emptied, added_tokens=[plain])
    assert Tokenizer.from_bytes(data).encode("é") == [7]
    data = saved(library("words"), normalizer=emptied, added_tokens=[{**plain, "normalized": True}])
    with pytest.raises(TokenizerError, match=r"'é'.*normalizer"):
        Tokenizer.from_bytes(data)


def test_tokens_added_by_a_post_processor_are_bounded() -> None:
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
    with pytest.raises(TokenizerError, match=r"post_processor .* 16384"):
        Tokenizer.from_bytes(many)


def test_the_last_of_duplicate_keys_counts_as_in_the_library() -> None:
    harmless, harmful = json.dumps(None), json.dumps(nested("normalizers", [DOUBLING] * 9))
    plain = saved(library("words"))[:-1].decode()
    Tokenizer.from_bytes(f'{plain}, "normalizer": {harmful}, "normalizer": {harmless}}}'.encode())
    with pytest.raises(TokenizerError, match="256-fold"):
        Tokenizer.from_bytes(
            f'{plain}, "normalizer": {harmless}, "normalizer": {harmful}}}'.encode()
        )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_an_altered_file_loads_or_is_refused(data: st.DataObject) -> None:
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


def test_the_memory_of_a_vocabulary_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(library("words"), model={"type": "Unigram", "unk_id": 0, "vocab": [["ab", -1.0]]})
    read_outline(data)
    monkeypatch.setattr(tokenizer_file, "MAX_UNIGRAM_BYTES", 1)
    with pytest.raises(TokenizerError, match=r"at most 1 bytes \(got 2\)"):
        read_outline(data)
    monkeypatch.setattr(tokenizer_file, "MAX_TOKENIZER_BYTES", len(data) - 1)
    with pytest.raises(TokenizerError, match=f"got {len(data)}"):
        read_outline(data)

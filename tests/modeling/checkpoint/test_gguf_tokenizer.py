"""Tokenizers of GGUF files give the ids of the original tokenizers."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.gguf_files import add_metadata, write_gguf
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.refusals import refusal
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.gguf.header import read_header
from ortolan.modeling.checkpoint.gguf.tokenizer import tokenizer_json

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and it's 1234567 times faster than  before.\n\n",
    "def f(x):\n    return x[0:10] + 3.14  # they'll, WE'VE, I'm\r\n\tend\n",
    "Größenwahn, naïve café, Москва, 東京都, ñandú, cafe\N{COMBINING ACUTE ACCENT} 🙂👍🏽 ½ ² ٣",
    "  leading, trailing   ",
    "HTTPServerError camelCase snake_case 2026-11-23T09:14:11Z",
    "a<|turn|>b <think>c</think>d",
    "",
]

SPECIAL, PLAIN = "<|turn|>", "<think>"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN2 = LLAMA3.replace("{1,3}", "")

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)

PLAIN_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def cut_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), PLAIN_BYTES])


KINDS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "llama-bpe": cut_by(LLAMA3),
    "qwen2": cut_by(QWEN2),
}
"""As published with models of these types."""


def trained(kind: str) -> Tokenizer:
    """A byte-level tokenizer, such as models are published with."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = KINDS[kind]
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    tokenizer.add_tokens([AddedToken(PLAIN, normalized=False, special=False)])
    return tokenizer


def bytes_metadata(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """The metadata that a converter writes for it."""
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    kinds = [{SPECIAL: CONTROL, PLAIN: USER_DEFINED}.get(str(token), NORMAL) for token in tokens]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    }


def written(file: Path, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in metadata.items():
        add_metadata(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def read(file: Path) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(read_header(file)))


@pytest.mark.parametrize("kind", KINDS)
def test_byte_level_ids_equal_the_original_s(kind: str, tmp_path: Path) -> None:
    original = trained(kind)
    metadata = bytes_metadata(original, kind) | {"tokenizer.ggml.add_bos_token": False}
    ours = read(written(tmp_path / "a.gguf", metadata))
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids, text
        if kind != "qwen2":  # which composes characters
            assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_pre_tokenizers_differ(tmp_path: Path) -> None:
    metadata = bytes_metadata(trained("gpt-2"), "gpt-2")
    ids = set()
    for kind in KINDS:
        file = written(tmp_path / "a.gguf", metadata | {"tokenizer.ggml.pre": kind})
        ids.add(tuple(tuple(read(file).encode(text).ids) for text in TEXTS))
    assert len(ids) == len(KINDS)


def test_special_tokens_around_a_text_follow_the_file(tmp_path: Path) -> None:
    metadata = bytes_metadata(trained("llama-bpe"), "llama-bpe")
    metadata |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 5}

    def ids(**flags: bool) -> list[int]:
        more = {f"tokenizer.ggml.{name}": value for name, value in flags.items()}
        return read(written(tmp_path / "a.gguf", metadata | more)).encode("it").ids

    bare = ids(add_bos_token=False)
    assert ids() == [0, *bare]  # the default of this kind
    assert ids(add_bos_token=True, add_eos_token=True) == [0, *bare, 5]
    assert ids(add_bos_token=False, add_eos_token=True) == [*bare, 5]


# --- pieces of SentencePiece --------------------------------------------------------------------


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPECIAL, PLAIN]


def pieces_metadata() -> dict[str, Any]:
    """A vocabulary of pieces whose scores are the order in which they were learned."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=250, show_progress=False)
    learner.train_from_iterator(TEXTS * 5, trainer)
    vocabulary = learner.get_vocab()
    result = sorted(vocabulary, key=lambda piece: vocabulary[piece])
    # As SentencePiece sorts them: pieces of several characters first, in order of their scores.
    learnt = [piece for piece in result if len(piece) > 1] + [p for p in result if len(p) == 1]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, USER_DEFINED]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": PIECES + learnt,
        "tokenizer.ggml.scores": [0.0] * len(PIECES) + [-float(i) for i in range(len(learnt))],
        "tokenizer.ggml.token_type": kinds + [NORMAL] * len(learnt),
        "tokenizer.ggml.bos_token_id": 1,
    }


def merged(text: str, metadata: dict[str, Any]) -> list[int]:
    """Reference: repeatedly merge the two pieces that make the best one."""
    ids = {piece: i for i, piece in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores = metadata["tokenizer.ggml.scores"]
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[ids[left + right]], place)
            for place, (left, right) in enumerate(pairwise(pieces))
            if left + right in ids
        ]
        if not pairs:
            break
        place = min(pairs)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    results: list[int] = []
    for piece in pieces:
        spelled = [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        results += [ids[piece]] if piece in ids else spelled
    return results


@pytest.mark.parametrize("prefixed", [True, False])
def test_pieces_are_merged_by_their_scores(prefixed: bool, tmp_path: Path) -> None:
    metadata = pieces_metadata()
    file = written(tmp_path / "a.gguf", metadata | {"tokenizer.ggml.add_space_prefix": prefixed})
    ours = read(file)
    for text in (*TEXTS[:5], "\N{SNOWMAN} 12", "quick"):
        expected = merged(f" {text}" if prefixed else text, metadata)
        assert ours.encode(text).ids == [1, *expected], text
        assert ours.decode(ours.encode(text).ids) == text


def test_special_tokens_among_pieces_are_never_cut(tmp_path: Path) -> None:
    ours = read(written(tmp_path / "a.gguf", pieces_metadata()))
    tokens = ours.encode(f"a{SPECIAL}b{PLAIN}c").tokens
    assert SPECIAL in tokens
    assert PLAIN in tokens


# --- companion files ----------------------------------------------------------------------------


def test_companions_are_generated_from_the_file(tmp_path: Path) -> None:
    model = reference_model(LLAMA | {"vocab_size": 401})
    own = bytes_metadata(trained("gpt-2"), "gpt-2")
    metadata = {
        "context_length": 96,
        "embedding_length": 32,
        "block_count": 2,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 3,
        **own,
    }
    file = tmp_path / "model.gguf"
    write_gguf(file, "llama", model, metadata)
    checkpoint = open_checkpoint(file)
    template = checkpoint.companion("chat_template.jinja")
    config = checkpoint.companion("generation_config.json")
    assert template is not None
    assert config is not None
    assert template.read_text() == "{{ messages }}"
    assert json.loads(config.read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "pad_token_id": None,
    }
    assert checkpoint.companion("tokenizer.json") is not None
    assert checkpoint.companion("preprocessor_config.json") is None


CHANGES: dict[str, dict[str, Any]] = {
    "an unknown model": {"model": "rwkv"},
    "an unknown pre-tokenizer": {"pre": "novel"},
    "tokens that are numbers": {"tokens": [1, 2]},
    "merges of other tokens": {"merges": ["no such", "pair"]},
    "too few types": {"token_type": [1]},
    "an absent token": {"bos_token_id": 1 << 20, "add_bos_token": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_unknown_or_damaged_tokenizer_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    change = {f"tokenizer.ggml.{key}": value for key, value in CHANGES[name].items()}
    file = written(tmp_path / "a.gguf", bytes_metadata(trained("gpt-2"), "gpt-2") | change)
    assert refusal(lambda: read(file), tmp_path) == snapshot

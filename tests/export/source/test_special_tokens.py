"""Ids and texts of a checkpoint's token files: special tokens, padding, speech, CTC symbols."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cases import contrast
from tests.refusals import refusal
from tests.runtime.transcription.tiny_wav2vec2 import SYMBOLS, tokenizer

from ortolan.export.errors import OptionError
from ortolan.export.source.ctc_symbols import NO_SYMBOLS, ctc_symbols
from ortolan.export.source.encoder_tokens import CONFIG, SPECIAL, has_types, padding_id
from ortolan.export.source.special_tokens import special_tokens
from ortolan.export.source.speech_tokens import speech_tokens
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

GENERATION = "generation_config.json"

OWN = Tokens(bos=0, eos=(2,), pad=1)
TARGET = Tokens(bos=0, eos=(2,), start=1)
"""Tokens in the config of a decoder, and of an encoder-decoder."""

LIBRARY = contrast.tokenizer("siglip")
PADDED = Tokenizer.from_bytes(LIBRARY.to_str().encode())


def write(folder: Path, **files: Any) -> Path:
    """Write JSON files by their stems."""
    for stem, values in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(values))
    return folder


def read(folder: Path, own: Tokens = OWN, **files: Any) -> Tokens:
    return special_tokens(own, write(folder, **files), vocab_size=97)


# --- special tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "eos"), [({}, (2,)), ({"eos_token_id": None}, (2,)), ({"eos_token_id": 9}, (9,))]
)
def test_eos_comes_from_the_config_if_generation_config_has_none(
    values: dict[str, object], eos: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, generation_config=values) == Tokens(bos=0, eos=eos, pad=1)


@pytest.mark.parametrize(("values", "bos"), [({}, 0), ({"bos_token_id": 3}, 3)])
def test_bos_comes_from_the_config_if_generation_config_has_none(
    values: dict[str, object], bos: int, tmp_path: Path
) -> None:
    assert read(tmp_path, generation_config=values).bos == bos


def test_a_padding_of_minus_one_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, Tokens(bos=0, eos=(2,), pad=-1)) == Tokens(bos=0, eos=(2,))


def test_bad_words_and_suppressed_tokens_are_never_chosen_but_an_eos_is(tmp_path: Path) -> None:
    values = {"eos_token_id": [2, 5], "bad_words_ids": [[7], [5], [9]], "suppress_tokens": [7, 4]}
    tokens = read(tmp_path, generation_config=values)
    assert (tokens.eos, tokens.suppressed) == ((2, 5), (4, 7, 9))


def test_forced_tokens_and_the_start_belong_to_an_encoder_decoder(tmp_path: Path) -> None:
    values = {
        "decoder_start_token_id": 7,
        "forced_bos_token_id": 8,
        "forced_eos_token_id": [9],
    }
    tokens = read(tmp_path, TARGET, generation_config=values)
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (7, 8, 9)
    tokens = read(tmp_path, generation_config=values)
    assert (tokens.start, tokens.forced_first, tokens.forced_last) == (None, None, 9)


def test_old_checkpoints_have_them_in_config(tmp_path: Path) -> None:
    values: dict[str, object] = {"forced_eos_token_id": 2, "bad_words_ids": [[5]]}
    expected = Tokens(bos=0, eos=(2,), start=1, forced_last=2, suppressed=(5,))
    assert read(tmp_path, TARGET, config=values) == expected
    values["force_bos_token_to_be_generated"] = True
    assert read(tmp_path, TARGET, config=values).forced_first == 0
    # Where there is a generation config, it counts alone, as in transformers.
    assert read(tmp_path, TARGET, generation_config={"eos_token_id": 2}) == TARGET


# --- padding, and types of tokens -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "token"),
    [
        ({CONFIG: "<pad>"}, "<pad>"),
        ({CONFIG: {"content": "</s>", "special": True}}, "</s>"),
        ({CONFIG: None, SPECIAL: "</s>"}, "</s>"),
        ({SPECIAL: {"content": "<pad>"}}, "<pad>"),
        ({CONFIG: "<pad>", SPECIAL: "</s>"}, "<pad>"),
    ],
)
def test_the_tokenizer_names_its_padding(
    files: dict[str, object], token: str, tmp_path: Path
) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps({"pad_token": value}))
    assert padding_id(PADDED, tmp_path, 7) == LIBRARY.token_to_id(token)


def test_without_its_files_the_config_names_the_padding(tmp_path: Path) -> None:
    assert padding_id(PADDED, tmp_path, 7) == 7
    assert padding_id(None, None, 0) == 0


NAMES = ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("values", "model_type", "expected"),
    [
        (None, "bert", True),
        (None, "albert", False),
        ({}, "electra", True),
        ({"tokenizer_class": "BertTokenizerFast"}, "albert", True),
        ({"tokenizer_class": "TokenizersBackend"}, "bert", False),
        ({"tokenizer_class": "DistilBertTokenizer"}, "bert", False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": NAMES}, "bert", False),
        ({"model_input_names": [*NAMES, "token_type_ids"]}, "albert", True),
    ],
)
def test_the_names_of_inputs_or_the_class_of_a_tokenizer_decide_about_types(
    values: dict[str, Any] | None, model_type: str, expected: bool, tmp_path: Path
) -> None:
    if values is not None:
        write(tmp_path, tokenizer_config=values)
    assert has_types(tmp_path, model_type) == expected


# --- the opening of a transcription ---------------------------------------------------------------

EN, DE, TRANSCRIBE, TRANSLATE, NO_TIMES = range(10, 15)
MODERN: dict[str, Any] = {
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMES,
}
HEARD = AudioSource(rate=16_000, window=400, hop=160, bins=20, frames=50, vectors=25)


def opening(folder: Path, generation: dict[str, Any], **config: Any) -> tuple[int | None, ...]:
    write(folder, generation_config=generation, config=config)
    return speech_tokens(folder, HEARD, vocab_size=64)[1]


FORCED = [[1, DE], [2, TRANSLATE], [3, NO_TIMES]]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (MODERN, ()),
        (MODERN | {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]}, ()),
        (MODERN | {"forced_decoder_ids": FORCED}, (DE, TRANSLATE)),
        ({"forced_decoder_ids": FORCED}, (DE, TRANSLATE, NO_TIMES)),
        (MODERN | {"forced_decoder_ids": [[1, None], [2, TRANSLATE]]}, (None, TRANSLATE)),
        ({"forced_decoder_ids": [[1, None], [2, TRANSLATE]]}, (TRANSLATE,)),
        (MODERN | {"language": "German", "forced_decoder_ids": FORCED}, (DE, TRANSCRIBE)),
        (MODERN | {"task": "translate", "forced_decoder_ids": FORCED}, (None, TRANSLATE)),
        (MODERN | {"task": "transcribe"}, ()),
    ],
)
def test_the_tokens_that_a_checkpoint_forces_open_a_transcription(
    generation: dict[str, Any], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert opening(tmp_path, generation) == expected
    # config.json counts where the other file forces nothing
    told = "forced_decoder_ids" in generation or "task" in generation
    other = opening(tmp_path, generation, forced_decoder_ids=[[1, EN]])
    assert other == (expected if told else (EN,))


# --- symbols of CTC -------------------------------------------------------------------------------


def symbols_of(*texts: str) -> dict[str, int]:
    return {text: number for number, text in enumerate(texts)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": True},
        {"pad_token": "<s>", "unk_token": "A"},
        {"word_delimiter_token": "F"},
        {"word_delimiter_token": "<space>"},
    ],
)
def test_symbols_decode_as_the_tokenizer_of_transformers(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    reference = tokenizer(write(tmp_path, vocab=symbols_of(*SYMBOLS)), **options)
    reference.save_pretrained(tmp_path)
    size = len(SYMBOLS) + 2  # some models have more logits than symbols
    symbols = ctc_symbols(tmp_path, size)
    assert reference.pad_token_id == symbols.blank
    first = SYMBOLS.index("B")
    for number in set(range(size)) - {first}:
        written = "" if number == symbols.blank else symbols.texts[number]
        around = symbols.texts[first]
        assert reference.decode([first, number, first]) == f"{around}{written}{around}"


def test_older_files_name_special_and_added_tokens(tmp_path: Path) -> None:
    write(
        tmp_path,
        vocab=symbols_of("|", "a", "[UNK]", "[PAD]"),
        special_tokens_map={"pad_token": {"content": "[PAD]"}, "unk_token": "[UNK]"},
        tokenizer_config={"do_lower_case": False, "word_delimiter_token": "|"},
        added_tokens={"<s>": 4, "</s>": 5},
    )
    symbols = ctc_symbols(tmp_path, 7)
    assert symbols.texts == (" ", "a", "[UNK]", "[PAD]", "<s>", "</s>", "[UNK]")
    assert symbols.blank == 3
    assert ctc_symbols(tmp_path, 4).texts == symbols.texts[:4]


def test_without_a_vocabulary_there_are_no_symbols(tmp_path: Path) -> None:
    assert ctc_symbols(tmp_path, 12) == ctc_symbols(None, 12) == NO_SYMBOLS


# --- refused --------------------------------------------------------------------------------------


def symbols(vocab: Any, size: int = 2, **config: Any) -> Callable[[Path], object]:
    return lambda folder: ctc_symbols(write(folder, vocab=vocab, tokenizer_config=config), size)


OURS = symbols_of(*SYMBOLS)

REFUSED: dict[str, Callable[[Path], object]] = {
    **{
        f"generation {values}": lambda folder, values=values: read(  # type: ignore[misc]
            folder, TARGET, generation_config=values
        )
        for values in (
            {"bad_words_ids": [[3, 4]]},
            {"forced_eos_token_id": [3, 4]},
            {"decoder_start_token_id": [3]},
            {"eos_token_id": "</s>"},
            {"eos_token_id": [2.5]},
            {"eos_token_id": [2, 97]},
            {"decoder_start_token_id": 97},
            {"forced_bos_token_id": -1},
            {"forced_eos_token_id": 99},
            {"suppress_tokens": [3, 98]},
        )
    },
    "bos beyond the vocabulary": lambda _: special_tokens(Tokens(bos=97), None, vocab_size=97),
    "pad below the vocabulary": lambda _: special_tokens(Tokens(pad=-2), None, vocab_size=97),
    "no padding": lambda _: padding_id(None, None, None),
    "a number as padding": lambda folder: padding_id(
        PADDED, write(folder, tokenizer_config={"pad_token": 3}), 7
    ),
    "several tokens as padding": lambda folder: padding_id(
        PADDED, write(folder, tokenizer_config={"pad_token": "pad"}), 7
    ),
    "names of inputs": lambda folder: has_types(
        write(folder, tokenizer_config={"model_input_names": 3}), "bert"
    ),
    **{
        f"opening {values}": lambda folder, values=values: opening(  # type: ignore[misc]
            folder, MODERN | values
        )
        for values in (
            {"forced_decoder_ids": [[2, DE]]},
            {"forced_decoder_ids": [[1, DE], [2, None]]},
            {"forced_decoder_ids": [[1, 64]]},
            {"language": "klingon"},
            {"task": "sing"},
            {"language": ["en", "de"]},
        )
    },
    "phonemes": symbols(OURS, 12, tokenizer_class="Wav2Vec2PhonemeCTCTokenizer"),
    "words apart by a line": symbols(OURS, 12, replace_word_delimiter_char="_"),
    "a blank without a symbol": symbols(OURS, 12, pad_token="[PAD]"),
    "a number as the blank": symbols(OURS, 12, pad_token=3),
    "more symbols than logits": symbols(OURS, 11),
    "one number for two symbols": symbols({"<pad>": 0, "a": 0}),
    "a number below zero": symbols({"<pad>": -1}),
    "a symbol without characters": symbols({"<pad>": 0, "": 1}),
    "a symbol of many characters": symbols({"<pad>": 0, "a" * 300: 1}),
    "symbols of two languages": symbols({"eng": {"<pad>": 0}}),
    "a fraction as a number": symbols({"a": 1.5}),
    "a text as a number": symbols({"a": "0"}),
    "too many logits": symbols({"<pad>": 0}, 1 << 16),
    "no symbols": symbols({}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tokens_that_a_bundle_cannot_hold_are_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: REFUSED[name](tmp_path), tmp_path) == snapshot


READERS: dict[str, Callable[[Path], object]] = {
    GENERATION: lambda folder: special_tokens(OWN, folder, vocab_size=97),
    CONFIG: lambda folder: padding_id(PADDED, folder, 7),
    "vocab.json": lambda folder: ctc_symbols(folder, 2),
}


@pytest.mark.parametrize("contents", ["{", "[]", "\udcff", "[" * 100_000])
@pytest.mark.parametrize("file", READERS)
def test_a_file_that_cannot_be_read_is_refused(
    file: str, contents: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / file).write_bytes(contents.encode(errors="surrogateescape"))
    assert refusal(lambda: READERS[file](tmp_path), tmp_path) == snapshot


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortolan.export.source.side_file.MAX_BYTES", 10)
    with pytest.raises(OptionError, match="at most 10 bytes"):
        read(tmp_path, generation_config={"eos_token_id": [1, 2, 3]})

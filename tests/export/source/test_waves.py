"""Encoders of waves at export: the feature extractor and the symbols of CTC as data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from tests.export.source.test_speech import SOUNDS, sound
from tests.runtime.transcription.tiny_wav2vec2 import SYMBOLS, extractor, tokenizer

from ortolan.export.errors import OptionError
from ortolan.export.source.audio_preprocessing import wave_source
from ortolan.export.source.ctc_symbols import NO_SYMBOLS, ctc_symbols
from ortolan.modeling.config import WaveInput, WaveLayer
from ortolan.runtime.bundle.sources import WaveSource
from ortolan.runtime.inputs.audio import read_wave

INPUT = WaveInput(
    layers=tuple(
        WaveLayer(channels=512, kernel=kernel, stride=stride, activation="gelu")
        for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True)
    ),
)
"""The convolutions of wav2vec 2.0."""

SOURCE = WaveSource(rate=16_000, window=400, hop=320, vectors=1500, normalized=True)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("samples", "rate", "channels", "form"), SOUNDS)
def test_waves_equal_those_of_transformers(
    tmp_path: Path, samples: int, rate: int, channels: int, form: str, normalized: bool
) -> None:
    reference = extractor(tmp_path, do_normalize=normalized)
    source = wave_source(replace(INPUT, layers=INPUT.layers[:1]), tmp_path, vectors=400_000)
    path = tmp_path / "sound.wav"
    soundfile.write(path, sound(max(samples, 40), rate, channels), rate, subtype=form)
    mono = soundfile.read(path, dtype="float32", always_2d=True)[0].mean(1)
    mono = mono if rate == source.rate else soxr.resample(mono, rate, source.rate)
    expected = reference(mono, sampling_rate=16_000).input_values[0]
    np.testing.assert_allclose(read_wave(path, source), expected, rtol=0, atol=1e-5)


def test_silence_stays_silence() -> None:
    assert not read_wave(np.zeros(4000, np.float32), SOURCE).any()


@pytest.mark.parametrize("values", [{}, {"do_normalize": False, "sampling_rate": 8000}])
def test_a_processor_of_newer_checkpoints_is_read(tmp_path: Path, values: dict[str, Any]) -> None:
    extractor(tmp_path, **values)
    old = tmp_path / "preprocessor_config.json"
    expected = wave_source(INPUT, tmp_path, vectors=1500)
    nested = {"feature_extractor": json.loads(old.read_text()), "processor_class": "Wav2Vec2"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    old.unlink()
    assert wave_source(INPUT, tmp_path, vectors=1500) == expected
    assert (expected.rate, expected.normalized) == (
        values.get("sampling_rate", 16_000),
        values.get("do_normalize", True),
    )


def test_without_a_file_the_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    assert wave_source(INPUT, tmp_path, vectors=1500) == SOURCE
    assert wave_source(INPUT, None, vectors=1500) == SOURCE


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feature_size": 80}, "feature_size"),
        ({"do_normalize": "yes"}, "do_normalize"),
        ({"sampling_rate": 10}, "rate"),
        ({"num_mel_bins": 80}, "keys of Wav2Vec2FeatureExtractor, got num_mel_bins"),
    ],
)
def test_other_extractors_are_rejected(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    extractor(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(OptionError, match=message):
        wave_source(INPUT, tmp_path, vectors=1500)


def test_a_damaged_file_or_too_few_vectors_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="max_context must be at least 2"):
        wave_source(INPUT, None, vectors=1)
    with pytest.raises(OptionError, match="max_context must be at most 360000"):
        wave_source(INPUT, None, vectors=400_000)
    (tmp_path / "preprocessor_config.json").write_bytes(b"\xff{")
    with pytest.raises(OptionError, match="cannot be read"):
        wave_source(INPUT, tmp_path, vectors=1500)


# --- symbols --------------------------------------------------------------------------------------


def write(folder: Path, symbols: Any = SYMBOLS, **files: Any) -> None:
    """Write vocab.json, and other files by their stems."""
    own = symbols if isinstance(symbols, dict) else {text: n for n, text in enumerate(symbols)}
    (folder / "vocab.json").write_text(json.dumps(own))
    for stem, values in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(values))


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
    write(tmp_path)
    reference = tokenizer(tmp_path, **options)
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
        ("|", "a", "[UNK]", "[PAD]"),
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


@pytest.mark.parametrize(
    ("symbols", "config", "size", "message"),
    [
        (SYMBOLS, {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}, 12, "Wav2Vec2CTCTokenizer"),
        (SYMBOLS, {"replace_word_delimiter_char": "_"}, 12, "separated by spaces"),
        (SYMBOLS, {"pad_token": "[PAD]"}, 12, "as the blank, got none"),
        (SYMBOLS, {"pad_token": 3}, 12, "pad_token"),
        (SYMBOLS, {}, 11, "from 0 to 10"),
        ({"<pad>": 0, "a": 0}, {}, 2, "different numbers"),
        ({"<pad>": -1}, {}, 2, "different numbers"),
        ({"<pad>": 0, "": 1}, {}, 2, "1 to 256 characters"),
        ({"<pad>": 0, "a" * 300: 1}, {}, 2, "1 to 256 characters"),
        ({"eng": {"<pad>": 0}}, {}, 2, "JSON object of symbols"),
        ({"<pad>": 0}, {}, 1 << 16, "at most"),
        ({}, {}, 2, "as the blank, got none"),
    ],
)
def test_other_vocabularies_are_rejected(
    tmp_path: Path, symbols: Any, config: dict[str, Any], size: int, message: str
) -> None:
    write(tmp_path, symbols, tokenizer_config=config)
    with pytest.raises(OptionError, match=message):
        ctc_symbols(tmp_path, size)


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'{"a": 1.5}', b'{"a": "0"}'])
def test_a_damaged_vocabulary_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "vocab.json").write_bytes(data)
    with pytest.raises(OptionError, match="Copy it again"):
        ctc_symbols(tmp_path, 2)

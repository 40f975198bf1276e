from pathlib import Path

import pytest
from tests.export.tiny_models import tokenizer

from ortolan.export.errors import OptionError
from ortolan.export.probes import LENGTHS, TEXT, make_probes
from ortolan.runtime.errors import TokenizerError


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    tokenizer().save(str(path))
    return path


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text).ids
    return ids


def test_random_probes_are_the_same_every_time_and_within_the_vocabulary() -> None:
    one, other = (
        make_probes(vocab_size=11, context_length=1000, tokenizer=None, calibration=None)
        for _ in range(2)
    )
    assert [probe.token_ids.tolist() for probe in one] == [p.token_ids.tolist() for p in other]
    assert tuple(len(probe.token_ids) for probe in one) == LENGTHS
    assert {int(i) for probe in one for i in probe.token_ids} == set(range(11))
    assert len({probe.name for probe in one}) == len(LENGTHS)


def test_probes_are_cut_from_the_built_in_text(tokenizer_file: Path) -> None:
    probes = make_probes(
        vocab_size=97, context_length=1000, tokenizer=tokenizer_file, calibration=None
    )
    assert tuple(len(probe.token_ids) for probe in probes) == LENGTHS
    joined = [int(i) for probe in probes for i in probe.token_ids]
    assert joined == ids_of(TEXT)[: len(joined)]


def test_probes_are_cut_from_the_calibration_text(tokenizer_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(65 + i % 26) for i in range(600)), encoding="utf-8")
    probes = make_probes(
        vocab_size=97, context_length=1000, tokenizer=tokenizer_file, calibration=text
    )
    assert probes[3].token_ids.tolist() == ids_of(text.read_text())[8:24]
    # The longest does not fit behind the others: it starts over.
    assert probes[-1].token_ids.tolist() == ids_of(text.read_text())[:512]


def test_no_probe_is_longer_than_the_context(tokenizer_file: Path) -> None:
    for given in (None, tokenizer_file):
        probes = make_probes(vocab_size=97, context_length=40, tokenizer=given, calibration=None)
        assert [len(probe.token_ids) for probe in probes] == [1, 2, 5, 16, 33, 40, 40, 40]


def test_calibration_text_as_long_as_the_longest_probe_is_enough(
    tokenizer_file: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("x" * 20)
    probes = make_probes(
        vocab_size=97, context_length=20, tokenizer=tokenizer_file, calibration=text
    )
    assert len(probes[-1].token_ids) == 20
    text.write_text("x" * 19)
    with pytest.raises(OptionError, match="at least 20 tokens, got 19"):
        make_probes(vocab_size=97, context_length=20, tokenizer=tokenizer_file, calibration=text)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "expected a text file, got No such file"),
        (b"caf\xe9 au lait", "expected UTF-8 text, got invalid continuation byte at byte 3"),
        (b"", "expected a text of at least 512 tokens, got 0"),
    ],
)
def test_calibration_file_of_no_use_is_named(
    contents: bytes | None, message: str, tokenizer_file: Path, tmp_path: Path
) -> None:
    text = tmp_path / "calibration.txt"
    if contents is not None:
        text.write_bytes(contents)
    with pytest.raises(OptionError, match=rf"calibration\.txt: {message}"):
        make_probes(vocab_size=97, context_length=1000, tokenizer=tokenizer_file, calibration=text)


def test_calibration_text_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    text = tmp_path / "calibration.txt"
    text.write_text("x" * 1000)
    with pytest.raises(OptionError, match=r"calibration\.txt: expected a checkpoint with tokeni"):
        make_probes(vocab_size=97, context_length=100, tokenizer=None, calibration=text)


def test_tokenizer_of_a_larger_model_is_an_error(tokenizer_file: Path) -> None:
    with pytest.raises(TokenizerError, match="expected ids below the model's 96, got 96"):
        make_probes(vocab_size=96, context_length=100, tokenizer=tokenizer_file, calibration=None)


def test_damaged_tokenizer_is_an_error(tokenizer_file: Path) -> None:
    tokenizer_file.write_bytes(tokenizer_file.read_bytes()[:-20])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        make_probes(vocab_size=97, context_length=100, tokenizer=tokenizer_file, calibration=None)

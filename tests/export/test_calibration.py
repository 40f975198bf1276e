import shutil
from pathlib import Path

import pytest
from tests.export import tiny_models

import ortolan
from ortolan.export.calibration import CalibrationText, cut_sequences, read_calibration
from ortolan.export.errors import OptionError
from ortolan.runtime.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_bytes(tiny_models.tokenizer().to_str().encode(), model_vocab_size=97)


def text(learn: str) -> CalibrationText:
    return CalibrationText(origin="notes.txt", learn=learn, held_out="")


def test_last_quarter_is_held_out_where_the_rest_is_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh")
    read = read_calibration(path, is_learned_from=True)
    assert (read.learn, read.held_out) == ("abcdef", "gh")


def test_all_is_held_out_where_nothing_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh")
    read = read_calibration(path, is_learned_from=False)
    assert (read.learn, read.held_out) == ("", "abcdefgh")


def test_short_text_is_cut_into_all_of_its_sequences(tokenizer: Tokenizer) -> None:
    learn = "".join(chr(65 + i % 26) for i in range(100))
    sequences = cut_sequences(text(learn), tokenizer, count=32, length=30)
    ids = list(tokenizer.encode(learn))
    assert [ids.tolist() for ids in sequences] == [ids[0:30], ids[30:60], ids[60:90]]


def test_sequences_are_spread_over_a_long_text(tokenizer: Tokenizer) -> None:
    learn = "".join(chr(65 + i) * 999 + "\n" for i in range(20))
    sequences = cut_sequences(text(learn), tokenizer, count=4, length=10)
    starts = [chr(65 + i) for i in (0, 5, 10, 15)]
    assert [ids.tolist() for ids in sequences] == [
        list(tokenizer.encode(start * 10)) for start in starts
    ]


def test_text_shorter_than_one_sequence_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(OptionError, match=r"notes\.txt: expected a text of at least 30 .* got 29"):
        cut_sequences(text("x" * 29), tokenizer, count=4, length=30)


def test_no_sequences_are_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(OptionError, match="expected at least 1, got 0"):
        cut_sequences(text("x" * 100), tokenizer, count=0, length=30)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "expected a text file, got No such file"),
        (b"caf\xe9 au lait", "expected UTF-8 text, got invalid continuation byte at byte 3"),
        (b"", "expected a text, got an empty file"),
    ],
)
def test_file_of_no_use_is_named(contents: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(OptionError, match=rf"notes\.txt: {message}"):
        read_calibration(path, is_learned_from=True)


def test_text_without_a_tokenizer_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("x" * 1000)
    mute = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, mute, ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(OptionError, match=r"notes\.txt: expected a checkpoint with tokenizer"):
        ortolan.export(mute, tmp_path / "out", calibration=path)

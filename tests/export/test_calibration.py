import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export.models_of_kinds import (
    decoder_config,
    encoder_config,
    image_config,
    seq2seq_config,
    source_of,
    write_plain_tokenizer,
    write_wrapping_tokenizer,
)

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.source import calibration
from ortolan.export.source.calibration import (
    CalibrationImages,
    CalibrationPairs,
    CalibrationText,
    can_calibrate,
    cut_inputs,
    own_recipe,
    read_calibration,
    recipe_calibration,
    spread,
)
from ortolan.export.source.checkpoint import Source
from ortolan.runtime.inputs.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain_tokenizer(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def wrapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wrapping_tokenizer(tmp_path_factory.mktemp("wrapping"))


@pytest.fixture(scope="module")
def decoder(plain: Path) -> Source:
    return source_of(decoder_config(), plain)


@pytest.fixture(scope="module")
def seq2seq(wrapping: Path) -> Source:
    return source_of(seq2seq_config(), wrapping)


def text(learn: str) -> CalibrationText:
    return CalibrationText(origin="notes.txt", learn=learn, held_out="")


def encoded(path: Path, learn: str) -> list[int]:
    return Tokenizer.from_bytes(path.read_bytes()).encode(learn)


# --- texts ------------------------------------------------------------------------------------


def test_last_quarter_is_held_out_where_the_rest_is_learned_from(
    decoder: Source, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh")
    read = read_calibration(path, decoder, is_learned_from=True)
    assert (read.learn, read.held_out) == ("abcdef", "gh")


def test_all_is_held_out_where_nothing_is_learned(decoder: Source, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh")
    read = read_calibration(path, decoder, is_learned_from=False)
    assert (read.learn, read.held_out) == ("", "abcdefgh")


def test_short_text_is_cut_into_all_of_its_sequences(decoder: Source, plain: Path) -> None:
    learn = "".join(chr(65 + i % 26) for i in range(100))
    inputs = cut_inputs(text(learn), decoder, count=32, length=30)
    ids = encoded(plain, learn)
    assert [each.tolist() for each in inputs.ids] == [ids[0:30], ids[30:60], ids[60:90]]
    assert inputs.sources == ()


def test_sequences_are_spread_over_a_long_text(decoder: Source, plain: Path) -> None:
    learn = "".join(chr(65 + i) * 999 + "\n" for i in range(20))
    inputs = cut_inputs(text(learn), decoder, count=4, length=10)
    starts = [chr(65 + i) for i in (0, 5, 10, 15)]
    assert [ids.tolist() for ids in inputs.ids] == [encoded(plain, each * 10) for each in starts]


def test_texts_of_an_encoder_stand_between_their_special_tokens(wrapping: Path) -> None:
    model = source_of(encoder_config(), wrapping)
    learn = "".join(chr(65 + i % 26) for i in range(100))
    inputs = cut_inputs(text(learn), model, count=32)
    assert inputs.ids == ()
    assert {len(ids) for ids in inputs.sources} == {20}  # no longer than the encoder takes
    body = encoded(wrapping, learn)[1:-1]
    assert [ids.tolist() for ids in inputs.sources[:2]] == [
        [1, *body[:18], 2],
        [1, *body[18:36], 2],
    ]


def test_text_shorter_than_one_sequence_is_an_error(decoder: Source) -> None:
    with pytest.raises(OptionError, match=r"notes\.txt: expected a text of at least 30 .* got 29"):
        cut_inputs(text("x" * 29), decoder, count=4, length=30)


def test_no_sequences_are_an_error(decoder: Source) -> None:
    with pytest.raises(OptionError, match="expected at least 1, got 0"):
        cut_inputs(text("x" * 100), decoder, count=0, length=30)


# --- pairs ------------------------------------------------------------------------------------


def test_pairs_are_lines_of_a_source_and_a_target(seq2seq: Source, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one {i}\tun {i}\n" for i in range(8)))
    read = read_calibration(path, seq2seq, is_learned_from=True)
    assert isinstance(read, CalibrationPairs)
    assert (len(read.learn), len(read.held_out)) == (6, 2)
    assert read.held_out[0] == ("one 6", "un 6")


def test_pairs_to_calibrate_on_are_spread_and_begin_with_the_start_token(
    seq2seq: Source, wrapping: Path
) -> None:
    learn = [(f"source {i}", f"target {i}") for i in range(64)]
    data = CalibrationPairs(origin="pairs", learn=learn, held_out=[])
    inputs = cut_inputs(data, seq2seq, count=2)  # eight pairs in place of a text
    assert len(inputs.sources) == len(inputs.ids) == 16
    assert inputs.sources[3].tolist() == encoded(wrapping, "source 12")
    assert inputs.ids[3].tolist() == [2, *encoded(wrapping, "target 12")]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("a\tb\nc d\n", "a TAB and a target on every line, got another line 2"),
        ("a\tb\n\tc\n", "got another line 2"),
        ("a\tb\tc\n", "got another line 1"),
        ("a\tb\n", "at least 2 pairs, got 1"),
    ],
)
def test_file_of_other_lines_is_an_error(
    contents: str, message: str, seq2seq: Source, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(contents)
    with pytest.raises(OptionError, match=rf"pairs\.tsv: expected .*{message}"):
        read_calibration(path, seq2seq, is_learned_from=True)


# --- images -----------------------------------------------------------------------------------


def array(count: int = 8, channels: int = 3) -> NDArray[np.uint8]:
    return np.arange(count * 54 * channels).reshape(count, 9, 6, channels).astype(np.uint8)


@pytest.mark.parametrize("has_axis", [False, True])
def test_images_are_an_array_of_bytes(has_axis: bool, tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    images = array(channels=1)
    np.save(path, images if has_axis else images[..., 0])
    model = source_of(image_config(channels=1))
    read = read_calibration(path, model, is_learned_from=True)
    assert isinstance(read, CalibrationImages)
    np.testing.assert_array_equal(read.learn, images[:6])
    np.testing.assert_array_equal(read.held_out, images[6:])
    pixels = cut_inputs(read, model, count=3).sources
    expected = [images[place].transpose(2, 0, 1) / 127.5 - 1 for place in (0, 2, 4)]
    np.testing.assert_allclose(np.stack(list(pixels)), np.stack(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, "No such file"),
        (array()[:, :8], r"uint8 \(8, 8, 6, 3\)"),
        (array().astype(np.float32), r"float32 \(8, 9, 6, 3\)"),
        (array(1), "at least 2 images, got 1"),
        (np.array([{}]), "allow_pickle"),
    ],
)
def test_file_of_other_images_is_an_error(
    images: NDArray[np.uint8] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "images.npy"
    if images is not None:
        np.save(path, images)
    with pytest.raises(OptionError, match=rf"images\.npy: expected .*{message}"):
        read_calibration(path, source_of(image_config()), is_learned_from=True)


def test_text_is_no_image(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no image")
    with pytest.raises(OptionError, match=r"notes\.txt: expected an array of bytes \(N, 9, 6, 3\)"):
        read_calibration(path, source_of(image_config()), is_learned_from=True)


# --- files of no use --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "expected a text file, got No such file"),
        (b"caf\xe9 au lait", "expected UTF-8 text, got invalid continuation byte at byte 3"),
        (b"", "expected a text, got an empty file"),
    ],
)
def test_file_of_no_use_is_named(
    contents: bytes | None, message: str, decoder: Source, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(OptionError, match=rf"notes\.txt: {message}"):
        read_calibration(path, decoder, is_learned_from=True)


def test_text_without_a_tokenizer_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("x" * 1000)
    mute = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, mute, ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(OptionError, match=r"notes\.txt: expected a checkpoint with tokenizer"):
        ortolan.export(mute, tmp_path / "out", calibration=path)


def test_no_more_than_there_is_is_taken() -> None:
    assert spread(3, 8) == [0, 1, 2]
    assert spread(8, 3) == [0, 2, 5]
    assert spread(0, 3) == []


# --- recipes ----------------------------------------------------------------------------------

RECIPE = """
[model]
[data]
{data}
[training]
steps = 1
batch_size = 1
learning_rate = 1.0
warmup_steps = 0
"""

DATA = {
    "stdlib": 'source = "stdlib"\nheld_out = ["json"]\nexclude = ["[a-ik-z]*"]',
    "numerals": 'source = "numerals"\npairs = 1000000\nheld_out = 20',
}


def with_recipe(model: Source, folder: Path, data: str) -> Source:
    (folder / "recipe.toml").write_text(RECIPE.format(data=DATA[data]))
    return replace(model, folder=folder)


def test_recipe_counts_only_where_its_data_is_of_the_models_kind(
    decoder: Source, seq2seq: Source, tmp_path: Path
) -> None:
    for data, fits in (("stdlib", decoder), ("numerals", seq2seq)):
        for model in (decoder, seq2seq):
            recipe = own_recipe(with_recipe(model, tmp_path, data))
            assert (recipe is not None) == (model is fits)
            assert can_calibrate(model, None, recipe) == (model is fits)
    assert own_recipe(decoder) is None


def test_text_of_a_recipe_is_its_corpus(decoder: Source, tmp_path: Path) -> None:
    recipe = own_recipe(with_recipe(decoder, tmp_path, "stdlib"))
    assert recipe is not None
    read = recipe_calibration(recipe)
    assert isinstance(read, CalibrationText)
    assert "class JSONDecoder" in read.held_out
    assert "class JSONDecoder" not in read.learn


def test_pairs_of_a_recipe_are_a_few_of_its_own(
    seq2seq: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "RECIPE_PAIRS", 50)
    recipe = own_recipe(with_recipe(seq2seq, tmp_path, "numerals"))
    assert recipe is not None
    read = recipe_calibration(recipe)
    assert isinstance(read, CalibrationPairs)
    assert (len(read.learn), len(read.held_out)) == (50, 20)
    assert not set(read.learn) & set(read.held_out)

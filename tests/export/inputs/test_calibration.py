import shutil
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.export.models_of_kinds import (
    Config,
    decoder_config,
    encoder_config,
    image_config,
    seq2seq_config,
    source_of,
)
from tests.refusals import refusal

import ortolan
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import (
    CalibrationImages,
    CalibrationPairs,
    CalibrationText,
    cut_inputs,
    own_calibration,
    read_calibration,
    spread,
)
from ortolan.export.low_bit import CACHE_SEQUENCES
from ortolan.export.source import open_exportable
from ortolan.modeling.config import EncoderDecoderConfig
from ortolan.runtime.inputs.tokenizer import Tokenizer

MODELS = Path(__file__).parents[3] / "models"


@pytest.fixture(scope="module")
def decoder(plain: Path) -> Exportable:
    return source_of(decoder_config(), plain)


@pytest.fixture(scope="module")
def seq2seq(wrapping: Path) -> Exportable:
    return source_of(seq2seq_config(), wrapping)


def text(learn: str) -> CalibrationText:
    return CalibrationText(origin="notes.txt", learn=learn, held_out="")


def encoded(path: Path, learn: str) -> list[int]:
    return Tokenizer.from_bytes(path.read_bytes()).encode(learn)


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_learned_from", "parts"), [(True, ("abcdef", "gh")), (False, ("", "abcdefgh"))]
)
def test_the_last_quarter_is_held_out_or_all(
    is_learned_from: bool, parts: tuple[str, str], decoder: Exportable, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh")
    read = read_calibration(path, decoder, is_learned_from=is_learned_from)
    assert (read.learn, read.held_out) == parts


def test_short_text_is_cut_into_all_of_its_sequences(decoder: Exportable, plain: Path) -> None:
    learn = "".join(chr(65 + i % 26) for i in range(100))
    inputs = cut_inputs(text(learn), decoder, count=32, length=30)
    ids = encoded(plain, learn)
    assert [sequence.tolist() for sequence in inputs.ids] == [ids[0:30], ids[30:60], ids[60:90]]
    assert inputs.sources == ()


def test_sequences_are_spread_over_a_long_text(decoder: Exportable, plain: Path) -> None:
    learn = "".join(chr(65 + i) * 999 + "\n" for i in range(20))
    inputs = cut_inputs(text(learn), decoder, count=4, length=10)
    starts = [chr(65 + i) for i in (0, 5, 10, 15)]
    assert [ids.tolist() for ids in inputs.ids] == [encoded(plain, start * 10) for start in starts]


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


# --- pairs ------------------------------------------------------------------------------------


def test_pairs_are_lines_of_a_source_and_a_target(seq2seq: Exportable, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one {i}\tun {i}\n" for i in range(8)))
    read = read_calibration(path, seq2seq, is_learned_from=True)
    assert isinstance(read, CalibrationPairs)
    assert (len(read.learn), len(read.held_out)) == (6, 2)
    assert read.held_out[0] == ("one 6", "un 6")


def test_pairs_to_calibrate_on_are_spread_and_begin_with_the_start_token(
    seq2seq: Exportable, wrapping: Path
) -> None:
    learn = [(f"source {i}", f"target {i}") for i in range(64)]
    data = CalibrationPairs(origin="pairs", learn=learn, held_out=[])
    inputs = cut_inputs(data, seq2seq, count=2)  # eight pairs count as one text
    assert len(inputs.sources) == len(inputs.ids) == 16
    assert inputs.sources[3].tolist() == encoded(wrapping, "source 12")
    assert inputs.ids[3].tolist() == [2, *encoded(wrapping, "target 12")]


# --- images -----------------------------------------------------------------------------------


def image_seq2seq_config() -> EncoderDecoderConfig:
    return replace(seq2seq_config(), encoder=image_config(), shared_embedding=False)


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


# --- files that cannot be read ----------------------------------------------------------------


def npy(images: NDArray[Any]) -> bytes:
    stream = BytesIO()
    np.save(stream, images)
    return stream.getvalue()


DECODER, SEQ2SEQ, IMAGES = decoder_config(), seq2seq_config(), image_config()

MALFORMED: dict[str, tuple[Config, bytes | None]] = {
    "no file": (DECODER, None),
    "no UTF-8": (DECODER, b"caf\xe9 au lait"),
    "an empty text": (DECODER, b""),
    "a line without a tab": (SEQ2SEQ, b"a\tb\nc d\n"),
    "a line without a source": (SEQ2SEQ, b"a\tb\n\tc\n"),
    "a line of three": (SEQ2SEQ, b"a\tb\tc\n"),
    "one pair": (SEQ2SEQ, b"a\tb\n"),
    "no file of images": (IMAGES, None),
    "no images": (IMAGES, b"no image"),
    "images of another size": (IMAGES, npy(array()[:, :8])),
    "images of floats": (IMAGES, npy(array().astype(np.float32))),
    "one image": (IMAGES, npy(array(1))),
    "an array of objects": (IMAGES, npy(np.array([{}]))),
    "images with texts": (image_seq2seq_config(), b"a\tb\n"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused(
    name: str, wrapping: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    config, contents = MALFORMED[name]
    path = tmp_path / "calibration.any"
    if contents is not None:
        path.write_bytes(contents)
    model = source_of(config, None if config is IMAGES else wrapping)
    read = partial(read_calibration, path, model, is_learned_from=True)
    assert refusal(read, tmp_path) == snapshot


def test_text_that_cannot_be_cut_is_refused(
    decoder: Exportable, checkpoint: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: cut_inputs(text("x" * 29), decoder, count=4, length=30)) == snapshot
    path = tmp_path / "notes.txt"
    path.write_text("x" * 1000)
    mute = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, mute, ignore=shutil.ignore_patterns("tokenizer.json"))
    export = partial(ortolan.export, mute, tmp_path / "out", calibration=path)
    assert refusal(export, tmp_path) == snapshot


def test_spread_is_even_and_within_bounds() -> None:
    assert spread(3, 8) == [0, 1, 2]
    assert spread(8, 3) == [0, 2, 5]
    assert spread(0, 3) == []


# --- the checkpoint's own file -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (decoder_config(), "calibration.txt"),
        (encoder_config(), "calibration.txt"),
        (seq2seq_config(), "calibration.tsv"),
        (image_config(), "calibration.npy"),
        (image_seq2seq_config(), None),
        (replace(decoder_config(), vocab_size=98), None),  # without a tokenizer
    ],
)
def test_own_file_of_each_kind(
    config: Config, name: str | None, wrapping: Path, tmp_path: Path
) -> None:
    is_mute = config == image_config() or getattr(config, "vocab_size", 0) == 98
    model = source_of(config, None if is_mute else wrapping)
    assert own_calibration(model) is None
    model = replace(model, origin=replace(model.origin, folder=tmp_path))
    assert own_calibration(model) is None
    expected = None if name is None else tmp_path / name
    for suffix in (".txt", ".tsv", ".npy"):
        (tmp_path / f"calibration{suffix}").touch()
    assert own_calibration(model) == expected


@pytest.mark.parametrize(
    ("name", "count", "held_out"),
    [("pythonic", 32, 43_690), ("snippets", 32, 32_426), ("numerals", 256, 85), ("digits", 32, 10)],
)
def test_own_files_of_our_models_hold_enough_for_the_defaults(
    name: str, count: int, held_out: int
) -> None:
    model = open_exportable(MODELS / name)
    path = own_calibration(model)
    assert path is not None
    data = read_calibration(path, model, is_learned_from=True)
    inputs = cut_inputs(data, model, count=CACHE_SEQUENCES)
    assert len(inputs.sources or inputs.ids) == count
    assert len(data.held_out) == held_out

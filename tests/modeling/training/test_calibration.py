"""The calibration file of a training: three quarters training data, one quarter held out."""

from pathlib import Path

import numpy as np

from ortolan.modeling.training.calibration import write_calibration
from ortolan.modeling.training.data import (
    Images,
    LabelledImages,
    LabelledTexts,
    Pairs,
    Texts,
    equal_share,
)


def test_the_last_quarter_of_a_text_is_held_out(tmp_path: Path) -> None:
    write_calibration(Texts(train=["a" * 900_000], held_out=["b" * 90_000]), tmp_path)
    text = (tmp_path / "calibration.txt").read_text()
    assert len(text) == 30 * 4096 * 4 // 3
    cut = len(text) - len(text) // 4
    assert set(text[:cut]) == {"a"}
    assert set(text[cut:]) == {"b"}


def test_a_short_text_keeps_the_shares(tmp_path: Path) -> None:
    for train, held_out in ((100, 2000), (2000, 100), (900, 300)):
        texts = Texts(train=["a" * train], held_out=["b" * held_out])
        write_calibration(texts, tmp_path)
        text = (tmp_path / "calibration.txt").read_text()
        assert "b" not in text[: len(text) - len(text) // 4]
        assert "a" not in text[len(text) - len(text) // 4 :]


def test_labelled_texts_are_written_as_text(tmp_path: Path) -> None:
    data = LabelledTexts(labels=("x",), train=[("aé\r\n" * 99, 0)], held_out=[("b" * 99, 0)])
    write_calibration(data, tmp_path)
    text = (tmp_path / "calibration.txt").read_bytes().decode()
    assert text.startswith("aé\r\n")
    assert text.endswith("b" * 90)


def test_pairs_are_written_as_lines_with_a_tab(tmp_path: Path) -> None:
    train = [("a\tb", "c"), ("a\nb", "c"), ("", "c")]
    train += [(f"one {n}", f"un {n}") for n in range(1000)]
    held_out = {"x": [("two", "deux")] * 100, "y": [("three\x0b", "trois")]}
    metrics = {"equal": equal_share}
    write_calibration(Pairs(train=train, held_out=held_out, metrics=metrics), tmp_path)
    lines = [line.split("\t") for line in (tmp_path / "calibration.tsv").read_text().splitlines()]
    assert len(lines) == 320
    assert all(source.startswith("one") for source, _ in lines[:240])
    assert lines[240:] == [["two", "deux"]] * 80
    assert len({source for source, _ in lines[:240]}) == 240


def test_images_are_written_as_an_array(tmp_path: Path) -> None:
    train, held_out = (
        Images(pixels=np.full((count, 4, 4, 3), value, np.uint8), labels=np.zeros(count, np.int64))
        for count, value in ((100, 1), (7, 2))
    )
    write_calibration(LabelledImages(labels=("x",), train=train, held_out=held_out), tmp_path)
    images = np.load(tmp_path / "calibration.npy")
    assert images.shape == (28, 4, 4, 3)
    assert images[:, 0, 0, 0].tolist() == [1] * 21 + [2] * 7


def test_too_little_data_writes_no_file(tmp_path: Path) -> None:
    write_calibration(Texts(train=["a"], held_out=["b"]), tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The calibration file next to a trained checkpoint, for its export to int8 or int4.

Its last quarter is held-out data, by which the export judges what it wrote.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np

from ortolan import files
from ortolan.modeling.training.data import (
    Answers,
    Data,
    LabelledImages,
    LabelledTexts,
    Pair,
    Pairs,
    Texts,
)

T = TypeVar("T")

MOST_IMAGES = 40

MOST_PAIRS = 320

PIECES, PIECE = 30, 4096
"""Pieces of the training text, spread evenly, and the most characters of each."""


def write_calibration(data: Data, folder: Path) -> None:
    """Write calibration.txt, calibration.tsv (pairs) or calibration.npy (images).

    Nothing is written where there is nothing held out, or less than three times as much to learn
    from.
    """
    match data:
        case LabelledImages(train=train, held_out=held_out):
            images = _chosen(list(train.pixels), list(held_out.pixels), MOST_IMAGES)
            if images:
                array = BytesIO()
                np.save(array, np.stack(images))
                files.write(folder / "calibration.npy", array.getbuffer())
        case Pairs(train=train, held_out=held_out):
            unseen = [pair for pairs in held_out.values() for pair in pairs if _is_line(pair)]
            pairs = _chosen([pair for pair in train if _is_line(pair)], unseen, MOST_PAIRS)
            _write(folder / "calibration.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs))
        case Answers(train=train, held_out=held_out):
            unseen = [pair for pairs in held_out.values() for pair in pairs]
            texts = _chosen(list(train), unseen, MOST_PAIRS)
            _write(folder / "calibration.txt", "".join(f"{a} {b}\n" for a, b in texts))
        case LabelledTexts(train=train, held_out=held_out):
            parts = ("\n".join(text for text, _ in part) for part in (train, held_out))
            _write(folder / "calibration.txt", _quarters(*parts))
        case Texts(train=train, held_out=held_out):
            _write(folder / "calibration.txt", _quarters("\n".join(train), "\n".join(held_out)))


def _chosen(train: Sequence[T], held_out: Sequence[T], most: int) -> list[T]:
    """Three parts to learn from and one held out, each spread evenly over what there is."""
    count = min(len(train) // 3, len(held_out), most // 4)
    return [
        part[number * len(part) // size]
        for part, size in ((train, 3 * count), (held_out, count))
        for number in range(size)
    ]


def _quarters(train: str, held_out: str) -> str:
    """Pieces of the training text, and a third as much from the start of the held-out text."""
    size = min(len(train), 3 * len(held_out), PIECES * PIECE) // PIECES
    starts = (number * len(train) // PIECES for number in range(PIECES))
    learned = "".join(train[start : start + size] for start in starts)
    return learned + held_out[: len(learned) // 3]


def _is_line(pair: Pair) -> bool:
    """Whether a line of the file can hold a pair."""
    return all(text.splitlines() == [text] and "\t" not in text for text in pair)


def _write(path: Path, text: str) -> None:
    if text:
        files.write(path, text)

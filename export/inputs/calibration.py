"""Calibration data: texts, pairs or images to calibrate on, and others to judge by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import (
    Inputs,
    around,
    encode_pair,
    image_inputs,
    longest_source,
    pair_inputs,
    text_inputs,
    wrapped,
)
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

SEQUENCE_LENGTH = 256
"""Tokens of one text to calibrate on, at most."""

PAIRS = 8
"""Pairs that count as one text, since they are shorter."""

_HELD_OUT = 4  # one part in so many of a file is not calibrated on
_CHARACTERS = 16  # of a token, at most, in nearly all texts


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """A text in two parts.

    Attributes:
        origin: the file, for messages.
        learn: to calibrate on.
        held_out: to judge by.
    """

    origin: str
    learn: str
    held_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPairs:
    """Sources and their targets, for a model that has both; see `CalibrationText`."""

    origin: str
    learn: Sequence[tuple[str, str]]
    held_out: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationImages:
    """Images `(N, H, W, C)`; see `CalibrationText`."""

    origin: str
    learn: NDArray[np.uint8]
    held_out: NDArray[np.uint8]


Calibration = CalibrationText | CalibrationPairs | CalibrationImages


def own_calibration(model: Exportable) -> Path | None:
    """The calibration file beside a checkpoint; None without one, or without a way to read it.

    It is `calibration.npy` for an encoder of images, `calibration.tsv` for a model that translates
    texts, and `calibration.txt` for a decoder or an encoder of texts; see `read_calibration`.
    """
    name = own_name(model)
    if model.folder is None or name is None or not can_read(model):
        return None
    path = model.folder / name
    return path if path.is_file() else None


def own_name(model: Exportable) -> str | None:
    """What the calibration file beside a checkpoint is called; None for a kind without one."""
    suffix = _suffix(model)
    return None if suffix is None else f"calibration{suffix}"


def can_read(model: Exportable) -> bool:
    """Whether a calibration file can be read: images as they are, texts by a tokenizer."""
    return model.tokenizer is not None or isinstance(model.takes, ImageSource)


def _suffix(model: Exportable) -> str | None:
    """The suffix of a model's calibration file; None for a kind that has none."""
    if isinstance(model.takes, ImageSource):
        return None if model.sides.has_decoder else ".npy"
    return ".tsv" if model.sides.reads_source else ".txt"


def read_calibration(path: Path, model: Exportable, *, is_learned_from: bool) -> Calibration:
    """Read a file; where a part of it is learned from, the last quarter is held out.

    The file is a text for a decoder or an encoder of texts; lines `source TAB target` for an
    encoder-decoder; and an array of bytes `(N, H, W, C)`, or `(N, H, W)` where an image has one
    channel, in numpy's format `.npy` for an encoder of images.

    Raises:
        OptionError: no such file, it holds something else, there is no tokenizer to read it, or
            there is no such file for the kind of the model.
    """
    suffix = _suffix(model)
    if suffix is None:
        raise OptionError(
            f"{path}: expected no calibration file for a model from images to texts, got one. "
            "Leave --calibration out."
        )
    if suffix == ".npy" and isinstance(model.takes, ImageSource):
        images = _read_images(path, model.takes)
        cut = _split(len(images), is_learned_from=is_learned_from)
        return CalibrationImages(origin=str(path), learn=images[:cut], held_out=images[cut:])
    if model.tokenizer is None:
        raise OptionError(
            f"{path}: expected a checkpoint with tokenizer.json to read this text with, got none. "
            "Leave --calibration out or add the tokenizer."
        )
    text = _read_text(path)
    if suffix == ".tsv":
        lines = _read_pairs(path, text)
        cut = _split(len(lines), is_learned_from=is_learned_from)
        return CalibrationPairs(origin=str(path), learn=lines[:cut], held_out=lines[cut:])
    cut = len(text) - len(text) // _HELD_OUT if is_learned_from else 0
    return CalibrationText(origin=str(path), learn=text[:cut], held_out=text[cut:])


def cut_inputs(
    data: Calibration, model: Exportable, *, count: int, length: int = SEQUENCE_LENGTH
) -> Inputs:
    """The inputs to calibrate on, spread evenly over the data.

    Args:
        data: of the model's kind.
        model: the model, with a tokenizer unless it takes images.
        count: at most so many texts or images, and several pairs for each; fewer where there is
            little.
        length: tokens of each text, at most.

    Raises:
        OptionError: there is too little.
    """
    return replace(_cut_inputs(data, model, count, length), origin=Path(data.origin).name)


def _cut_inputs(data: Calibration, model: Exportable, count: int, length: int) -> Inputs:
    match data, model.tokenizer:
        case CalibrationImages(learn=images), _:
            return image_inputs(model, images[spread(len(images), count)])
        case _, None:
            raise OptionError("calibration: expected a tokenizer to read it with, got none.")
        case CalibrationPairs(learn=learn), tokenizer:
            chosen = spread(len(learn), count * PAIRS)
            return pair_inputs([encode_pair(model, tokenizer, learn[place]) for place in chosen])
        case CalibrationText() as text, tokenizer:
            return text_inputs(model, _cut_texts(text, model, tokenizer, count, length))


def spread(available: int, count: int) -> list[int]:
    """Indices of at most `count` of some items, evenly spaced from the first."""
    count = min(count, available)
    return [number * available // count for number in range(count)]


def _cut_texts(
    text: CalibrationText, model: Exportable, tokenizer: Tokenizer, count: int, length: int
) -> list[NDArray[np.int64]]:
    """Texts of one length, `(length,)` each; those of an encoder between its special tokens."""
    length = min(length, longest_source(model))
    is_decoder = not model.sides.has_encoder
    special: tuple[list[int], list[int]] = ([], []) if is_decoder else around(tokenizer)
    room = length - len(special[0]) - len(special[1])
    room = length if room < 1 else room

    def encode(part: str) -> list[int]:
        return tokenizer.encode(part, add_special_tokens=is_decoder)

    ids = _cut(text.learn, encode, count, room)
    if not ids:
        raise OptionError(
            f"{text.origin}: expected a text of at least {room} tokens to calibrate on, got "
            f"{len(encode(text.learn))} apart from those held out. Give a longer text."
        )
    return [wrapped(np.array(sequence, np.int64), length, special) for sequence in ids]


def _cut(text: str, encode: Callable[[str], list[int]], count: int, length: int) -> list[list[int]]:
    width = length * _CHARACTERS
    stride = max(len(text) // count, 1)
    if stride < width:
        # Too short to be spread: every token, in order.
        ids = encode(text)
        starts = range(0, len(ids) - length + 1, length)
        return [ids[start : start + length] for start in starts[:count]]
    pieces = [text[number * stride :][:width] for number in range(count)]
    # From the first whole line, so that no word is cut in two.
    encoded = [encode(piece.partition("\n")[2] or piece) for piece in pieces]
    return [ids[:length] for ids in encoded if len(ids) >= length]


def _split(count: int, *, is_learned_from: bool) -> int:
    """How many of some items are calibrated on; the rest, at least one, is held out."""
    return count - max(count // _HELD_OUT, 1) if is_learned_from else 0


def _read_pairs(path: Path, text: str) -> list[tuple[str, str]]:
    read = []
    for number, line in enumerate(text.splitlines(), 1):
        source, tab, target = line.partition("\t")
        if not (source and tab and target) or "\t" in target:
            raise OptionError(
                f"{path}: expected a source, a TAB and a target on every line, got another line "
                f"{number}. Write pairs of what the model translates."
            )
        read.append((source, target))
    _check_count(path, "pairs", len(read))
    return read


def _read_images(path: Path, source: ImageSource) -> NDArray[np.uint8]:
    """Images `(N, H, W, C)` as bytes, of the size that the model takes."""
    expected = f"an array of bytes (N, {source.height}, {source.width}, {source.channels}) in .npy"
    try:
        # A pickle could run code.
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(
            f"{path}: expected {expected}, got {str(error)[:200]}. Check the path."
        ) from error
    if isinstance(images, np.ndarray) and images.ndim == 3:
        images = images[..., None]
    shape = (source.height, source.width, source.channels)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != shape:
        got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "an archive"
        raise OptionError(f"{path}: expected {expected}, got {got}. Save the images like this.")
    _check_count(path, "images", len(images))
    return images


def _check_count(path: Path, what: str, count: int) -> None:
    if count < 2:
        raise OptionError(f"{path}: expected at least 2 {what}, got {count}. Give more.")


def _read_text(path: Path) -> str:
    """Read a UTF-8 text.

    Raises:
        OptionError: no such file, empty, or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"{path}: expected a text file, got {error.strerror}. Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path}: expected UTF-8 text, got {error.reason} at byte {error.start}. Convert it."
        ) from error
    if not text:
        raise OptionError(f"{path}: expected a text, got an empty file. Give a longer text.")
    return text

"""Calibration files: texts, pairs or images, split into a part to learn from and a hold-out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

SEQUENCE_LENGTH = 256
"""Maximum tokens of one calibration text."""

PAIRS = 8
"""Pairs that count as one text, since pairs are shorter."""

_HOLD_OUT = 4
"""Hold out one quarter of a file."""

_CHARACTERS = 16
"""Characters per token, at most, in nearly all texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """A text in two parts.

    Attributes:
        origin: name of the file, for messages.
        learn: part to calibrate on.
        held_out: part to judge the bundle by.
    """

    origin: str
    learn: str
    held_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPairs:
    """Sources and targets of an encoder-decoder; see `CalibrationText`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Calibration data.

    Attributes:
        file: whose held-out part judges the bundle, if any.
        inputs: to calibrate on, cut from the file; none where the model has to write them.
        work: folder of unfinished work (`export.unfinished`), if weights are calibrated.
    """

    file: Calibration | None = None
    inputs: Inputs = field(default_factory=Inputs)
    work: Path | None = None


def own_calibration(model: Exportable) -> Path | None:
    """The checkpoint's own calibration file; None if it has none, or none that can be read.

    `calibration.npy` for an encoder of images, `calibration.tsv` for an encoder-decoder of text,
    `calibration.txt` for other models of text; see `read_calibration`.
    """
    name = own_name(model)
    folder = model.origin.folder
    # text needs a tokenizer
    can_read = model.tokenizer is not None or isinstance(model.source, ImageSource)
    if folder is None or name is None or not can_read:
        return None
    path = folder / name
    return path if path.is_file() else None


def own_name(model: Exportable) -> str | None:
    """Name of a checkpoint's own calibration file; None for kinds without one."""
    if not isinstance(model.source, TextSource | None):
        has_own = isinstance(model.source, ImageSource) and not model.sides.has_decoder
        return "calibration.npy" if has_own else None
    return "calibration.tsv" if model.sides.reads_source else "calibration.txt"


def read_calibration(path: Path, model: Exportable, *, is_learned_from: bool) -> Calibration:
    """Read a calibration file, and hold out its last quarter, or all of it.

    The file is text for a decoder or an encoder of text; lines of `source TAB target` for an
    encoder-decoder; a uint8 array `(N, H, W, C)` in `.npy`, or `(N, H, W)` for one channel, for an
    encoder of images.
    """
    name = own_name(model)
    if name is None:
        raise OptionError(
            f"{path}: a model of sounds, of images of any size, or from images to text takes no "
            "calibration file. Leave --calibration out."
        )
    if name.endswith(".npy") and isinstance(model.source, ImageSource):
        images = _read_images(path, model.source)
        cut = _split(len(images), is_learned_from=is_learned_from)
        return CalibrationImages(origin=str(path), learn=images[:cut], held_out=images[cut:])
    if model.tokenizer is None:
        raise OptionError(
            f"{path}: reading calibration text needs a tokenizer; this checkpoint has none. Pass "
            "--tokenizer, or leave --calibration out."
        )
    text = _read_text(path)
    if name.endswith(".tsv"):
        lines = _read_pairs(path, text)
        cut = _split(len(lines), is_learned_from=is_learned_from)
        return CalibrationPairs(origin=str(path), learn=lines[:cut], held_out=lines[cut:])
    cut = len(text) - len(text) // _HOLD_OUT if is_learned_from else 0
    return CalibrationText(origin=str(path), learn=text[:cut], held_out=text[cut:])


def cut_inputs(
    data: Calibration, model: Exportable, *, count: int, length: int = SEQUENCE_LENGTH
) -> Inputs:
    """Inputs to calibrate on, spread evenly over the data."""
    return replace(_cut_inputs(data, model, count, length), origin=Path(data.origin).name)


def _cut_inputs(data: Calibration, model: Exportable, count: int, length: int) -> Inputs:
    match data, model.tokenizer:
        case CalibrationImages(learn=images), _:
            return image_inputs(model, images[spread(len(images), count)])
        case _, None:
            raise OptionError("Reading calibration text needs a tokenizer. Pass --tokenizer.")
        case CalibrationPairs(learn=learn), tokenizer:
            chosen = spread(len(learn), count * PAIRS)
            return pair_inputs([encode_pair(model, tokenizer, learn[place]) for place in chosen])
        case CalibrationText() as text, tokenizer:
            return text_inputs(model, _cut_texts(text, model, tokenizer, count, length))


def spread(available: int, count: int) -> list[int]:
    """Indices of at most `count` items, evenly spaced from the first."""
    count = min(count, available)
    return [number * available // count for number in range(count)]


def _cut_texts(
    text: CalibrationText, model: Exportable, tokenizer: Tokenizer, count: int, length: int
) -> list[NDArray[np.int64]]:
    """Texts of one length, `(length,)` each, with the special tokens of an encoder."""
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
            f"{text.origin} needs at least {room} tokens to calibrate on (got "
            f"{len(encode(text.learn))} without the hold-out). Use a longer text."
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
    """Number of items to calibrate on; the rest, at least one, is held out."""
    return count - max(count // _HOLD_OUT, 1) if is_learned_from else 0


def _read_pairs(path: Path, text: str) -> list[tuple[str, str]]:
    read = []
    for number, line in enumerate(text.splitlines(), 1):
        source, tab, target = line.partition("\t")
        if not (source and tab and target) or "\t" in target:
            raise OptionError(
                f"{path}, line {number}: every line must be a source, a TAB and a target."
            )
        read.append((source, target))
    _check_count(path, "pairs", len(read))
    return read


def _read_images(path: Path, source: ImageSource) -> NDArray[np.uint8]:
    """Images `(N, H, W, C)` as bytes, in the size of the model."""
    expected = f"a uint8 array (N, {source.height}, {source.width}, {source.channels}) in .npy"
    try:
        # A pickle could execute code.
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(
            f"{path} must be {expected}: {str(error)[:200]}. Check the path."
        ) from error
    if isinstance(images, np.ndarray) and images.ndim == 3:
        images = images[..., None]
    shape = (source.height, source.width, source.channels)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != shape:
        got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "an archive"
        raise OptionError(f"{path} must be {expected} (got {got}).")
    _check_count(path, "images", len(images))
    return images


def _check_count(path: Path, noun: str, count: int) -> None:
    if count < 2:
        raise OptionError(f"{path} needs at least 2 {noun} (got {count}).")


def _read_text(path: Path) -> str:
    """Read a UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}. Convert it."
        ) from error
    if not text:
        raise OptionError(f"{path} is empty.")
    return text

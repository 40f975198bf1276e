"""The text that a quantized bundle is calibrated on, and the text that it is judged on.

Knows where texts come from and how ids are cut from them. Does not know what is done with them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.modeling.corpus import read_corpus
from ortolan.modeling.recipe import read_recipe
from ortolan.runtime.tokenizer import Tokenizer

SEQUENCE_LENGTH = 256
"""Tokens of one text to calibrate on."""

RECIPE = "recipe.toml"

_HELD_OUT = 4  # one part in so many of a file is not calibrated on
_CHARACTERS = 16  # of a token, at most, in nearly all texts


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """A text in two parts.

    Attributes:
        origin: where it comes from, for messages.
        learn: what to calibrate on.
        held_out: what to judge by.
    """

    origin: str
    learn: str
    held_out: str


def read_calibration(path: Path, *, is_learned_from: bool) -> CalibrationText:
    """Read a text file; where a part of it is learned from, the last quarter is held out.

    Raises:
        OptionError: no such file, or not UTF-8 text.
    """
    text = _read_text(path)
    cut = len(text) - len(text) // _HELD_OUT if is_learned_from else 0
    return CalibrationText(origin=str(path), learn=text[:cut], held_out=text[cut:])


def recipe_calibration(path: Path) -> CalibrationText:
    """The text that a recipe names.

    Raises:
        RecipeError: the recipe cannot be read, or its text is not on this machine.
    """
    corpus = read_corpus(read_recipe(path).data)
    return CalibrationText(
        origin=str(path), learn="\n".join(corpus.train), held_out="\n".join(corpus.held_out)
    )


def cut_sequences(
    text: CalibrationText, tokenizer: Tokenizer, *, count: int, length: int = SEQUENCE_LENGTH
) -> list[Tensor]:
    """Texts to calibrate on, int64 `(length,)` each, spread evenly over the whole.

    Args:
        text: what to cut from.
        tokenizer: the checkpoint's.
        count: at most so many; fewer where the text is short.
        length: tokens of each.

    Raises:
        OptionError: the text is shorter than one sequence.
    """
    if count < 1:
        raise OptionError(f"calibration sequences: expected at least 1, got {count}.")
    ids = _spread(text.learn, tokenizer, count, length)
    if not ids:
        raise OptionError(
            f"{text.origin}: expected a text of at least {length} tokens to calibrate on, got "
            f"{len(tokenizer.encode(text.learn))} beside those held out. Give a longer text."
        )
    return [torch.tensor(sequence, dtype=torch.int64) for sequence in ids]


def _spread(text: str, tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    width = length * _CHARACTERS
    stride = max(len(text) // count, 1)
    if stride < width:
        # Too short to be spread: every token of it, in a row.
        ids = tokenizer.encode(text)
        starts = range(0, len(ids) - length + 1, length)
        return [list(ids[start : start + length]) for start in starts[:count]]
    pieces = [text[number * stride :][:width] for number in range(count)]
    # From the first whole line, so that no word is cut in two.
    encoded = [tokenizer.encode(piece.partition("\n")[2] or piece) for piece in pieces]
    return [list(ids[:length]) for ids in encoded if len(ids) >= length]


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

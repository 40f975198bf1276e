"""Random choices for a sentence, and numbers that training never sees."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar
from zlib import crc32

from .spelling import Style

T = TypeVar("T")

LARGEST = 1_000_000

SMALLEST_HELD_OUT = 21
"""Smaller numbers have irregular names, which cannot be derived from others."""

HELD_OUT_PART = 10


def is_held_out(number: int) -> bool:
    """Whether a number belongs to the tenth that training never sees."""
    return number >= SMALLEST_HELD_OUT and crc32(b"%d" % number) % HELD_OUT_PART == 0


@cache
def _held_out() -> list[int]:
    return [number for number in range(LARGEST + 1) if is_held_out(number)]


def _held_out_within(least: int, most: int) -> range:
    """Indices into `_held_out` of the held-out numbers of a span."""
    numbers = _held_out()
    return range(bisect_left(numbers, least), bisect_right(numbers, most))


@dataclass(kw_only=True, slots=True)
class Draw:
    """Random choices for a sentence, and the numbers it contains.

    With `prefers_held_out`, they are numbers that training never sees, where possible.
    """

    rng: random.Random
    prefers_held_out: bool = False
    numbers: list[int] = field(default_factory=list)

    def number(self, least: int, most: int) -> int:
        """Draw a number: every count of digits is equally likely, and round numbers more so."""
        spans = [
            (max(least, 10 ** (digits - 1) if digits > 1 else 0), min(most, 10**digits - 1))
            for digits in range(len(str(least)), len(str(most)) + 1)
        ]
        if self.prefers_held_out:
            spans = [span for span in spans if _held_out_within(*span)] or spans
        low, high = self.of(spans)
        if self.prefers_held_out and (indices := _held_out_within(low, high)):
            return self.note(_held_out()[self.of(indices)])
        number = self.rng.randint(low, high)
        if number >= 100 and self.rng.random() < 0.15:
            round_to = 10 ** self.rng.randint(1, len(str(number)) - 1)
            number = max(low, number - number % round_to)
        return self.note(number)

    def note(self, number: int) -> int:
        """Record a number of the sentence."""
        self.numbers.append(number)
        return number

    def style(self, number: int) -> Style:
        """Choose words or digits for the English side."""
        if self.rng.random() < 0.5:
            return "words"
        return "grouped" if number >= 1000 and self.rng.random() < 0.5 else "digits"

    def of(self, choices: Sequence[T]) -> T:
        """Choose one item."""
        return self.rng.choice(choices)

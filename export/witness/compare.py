"""Compares two answers to one question.

An answer is a number, an array of them, a text, an id, or a list or mapping of answers. Numbers are
compared within a tolerance, everything else exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Answer = Any
"""A number, a text, an array of floats, or lists and mappings of these."""

SHOWN = 60
"""Characters of a value in a message."""


SMALLEST = 1e-30
"""Replaces the largest number of an answer of zeros."""

ALONE = 1.0
"""Replaces a number that is alone if that is smaller: a probability is one of several, and a score
near 0 is a sum of larger numbers."""

UNKNOWN: Answer = object()
"""Answer of the publisher's code where it does not say."""


class Beginning(list[int]):
    """Token ids that the other answer must begin with."""


@dataclass(frozen=True, slots=True)
class Either:
    """Two answers of which one must be equal; the second is asked for where the first differs."""

    first: Answer
    second: Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Rough:
    """An answer that another kernel rounds, with the largest difference that this explains."""

    answer: Answer
    tolerance: float


def plain(answer: Answer) -> Answer:
    """The first of two answers, and rough ones as they are."""
    if isinstance(answer, Either):
        return plain(answer.first)
    if isinstance(answer, Rough):
        return plain(answer.answer)
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two answers differ.

    Attributes:
        where: path inside the answer; empty for the whole.
        ours: the bundle's value, in words.
        theirs: the publisher's value, in words.
    """

    where: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        """`where: the bundle has x, its publisher's code y`."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}the bundle gives {self.ours}, the publisher's code {self.theirs}"


@dataclass(slots=True)
class Comparison:
    """Collects the differences of one answer.

    Attributes:
        tolerance: largest difference of numbers, relative to the largest number of the array;
            infinite where numbers are not compared.
        first: the first difference.
        largest: largest relative difference of numbers, if there are any.
    """

    tolerance: float
    first: Difference | None = None
    largest: float | None = None

    def compare(self, ours: Answer, theirs: Answer, where: str = "") -> None:
        """Compare two answers, or two parts of them."""
        if isinstance(theirs, Either):
            trial = Comparison(self.tolerance)
            trial.compare(ours, theirs.first, where)
            theirs = theirs.first if trial.first is None else theirs.second()
        if isinstance(theirs, Rough):
            rough = Comparison(max(self.tolerance, theirs.tolerance))
            rough.compare(ours, theirs.answer, where)
            self.first = self.first or rough.first
            if rough.largest is not None:
                self.largest = max(rough.largest, self.largest or 0.0)
            return
        if isinstance(theirs, Beginning):
            ours = list(ours)[: len(theirs)]
            theirs = list(theirs)
        if isinstance(theirs, float | np.ndarray):
            is_alone = isinstance(theirs, float) or theirs.size == 1
            least = ALONE if is_alone else SMALLEST
            numbers = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
            self._numbers(*numbers, where, least)
        elif isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            for key in dict.fromkeys((*theirs, *ours)):
                place = f"{where}.{key}" if where else str(key)
                if key in theirs and key in ours:
                    self.compare(ours[key], theirs[key], place)
                else:
                    self._differ(place, *_words(key in ours, key in theirs))
        elif _is_list(theirs) and _is_list(ours):
            for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
                self.compare(one, other, f"{where}[{number}]")
            if len(ours) != len(theirs):
                self._differ(where, _items(ours), _items(theirs))
        elif ours != theirs:
            self._differ(where, *_cut(ours, theirs))

    def _numbers(self, ours: Any, theirs: Any, where: str, least: float) -> None:
        if ours.shape != theirs.shape:
            self._differ(where, f"shape {ours.shape}", f"{theirs.shape}")
            return
        if not theirs.size or self.tolerance == np.inf:
            return
        with np.errstate(invalid="ignore"):  # infinite in both: a masked logit
            gaps = np.where(ours == theirs, 0.0, np.abs(ours - theirs))
        finite = theirs[np.isfinite(theirs)]
        scale = float(np.abs(finite).max()) if finite.size else 0.0
        error = float(gaps.max()) / max(scale, least)
        error = error if np.isfinite(error) else np.inf
        self.largest = max(error, self.largest or 0.0)
        if error > self.tolerance:
            place = np.unravel_index(int(gaps.argmax()), gaps.shape)
            spot = f"{where}[{', '.join(str(int(index)) for index in place)}]" if place else where
            self._differ(spot, f"{float(ours[place]):.6g}", f"{float(theirs[place]):.6g}")

    def _differ(self, where: str, ours: str, theirs: str) -> None:
        if self.first is None:
            self.first = Difference(where=where, ours=ours, theirs=theirs)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _words(ours: bool, theirs: bool) -> tuple[str, str]:
    return ("a value" if ours else "nothing"), ("a value" if theirs else "nothing")


def _items(values: Sequence[Any]) -> str:
    """A short list, or the number of items of a long one."""
    text = f"{list(values)}"
    return text if len(text) <= SHOWN else f"{len(values)} items"


def _cut(ours: object, theirs: object) -> tuple[str, str]:
    """Both values from shortly before the first character that differs."""
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        return repr(ours)[:SHOWN], repr(theirs)[:SHOWN]
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    start = max(0, (min(len(ours), len(theirs)) if same is None else same) - SHOWN // 4)
    return repr(ours[start : start + SHOWN]), repr(theirs[start : start + SHOWN])

"""Budget of a rendering: steps and characters of strings."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from jinja2 import Undefined

from ortolan.runtime.errors import ChatTemplateError

BASE_STEPS = 30_000
"""Steps without any message. Published templates need a few hundred."""

STEPS_PER_VALUE = 600
"""Steps per input value. Published templates need a few dozen for a message of five values."""

BASE_CHARACTERS = 2 << 20
"""Characters of all intermediate strings, without any message."""

GROWTH = 64
"""Copies per input character: by trimming, joining, writing."""

MAX_INTEGER_BITS = 256
"""Templates count messages; repeated squaring would fill memory within forty steps."""

_SCALARS = (str, int, float, type(None), Undefined)

_LISTS: tuple[type[Any], ...] = (
    list,
    tuple,
    range,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)

_DATA: tuple[type[Any], ...] = (*_SCALARS, dict, *_LISTS)


class Budget:
    """Remaining steps and characters. Operations pay before they do something large."""

    __slots__ = ("_characters", "_steps")

    def __init__(self, *, values: int, characters: int) -> None:
        self._steps = BASE_STEPS + STEPS_PER_VALUE * values
        self._characters = BASE_CHARACTERS + GROWTH * characters

    def step(self, count: int = 1) -> None:
        """Pay steps; ChatTemplateError if too few are left."""
        self._steps -= count
        if self._steps < 0:
            raise ChatTemplateError(
                "The chat template takes too many steps for these messages and may never end. Use "
                "another template."
            )

    def text(self, length: int) -> None:
        """Pay for a string about to be built or scanned; ChatTemplateError if too few are left."""
        self._characters -= length
        if self._characters < 0:
            raise ChatTemplateError(
                "The chat template builds strings far too long for these messages. Use another "
                "template."
            )

    def walk(self, value: Any, times: int = 1) -> int:
        """Pay for walking all of a value a number of times, and return its characters.

        A list that contains another one twice, and so on, is small but takes forever to walk.
        """
        characters = 0
        for item in _nested(value):
            self.step(times)
            if isinstance(item, str):
                characters += len(item)
                self.text(times * len(item))
            elif not isinstance(item, _DATA):
                raise ChatTemplateError(
                    f"The chat template uses a {type(item).__name__.lower()} as data. Use another "
                    "template."
                )
        return characters

    def pay_result(self, value: Any) -> Any:
        """Pay for a result and return it, with generators exhausted."""
        if isinstance(value, Iterator):
            return iter(self.pay_result([*value]))
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, list | tuple | dict):
            self.step(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise ChatTemplateError(
                f"The chat template computes an integer of {value.bit_length()} bits, more than "
                f"{MAX_INTEGER_BITS}. Use another template."
            )
        return value


def count_values(value: Any) -> tuple[int, int]:
    """Count the values in plain data, and the characters of its strings."""
    values = characters = 0
    for item in _nested(value):
        values += 1
        characters += len(item) if isinstance(item, str) else 0
    return values, characters


def _nested(value: Any) -> Iterator[Any]:
    """Yield a value and all values in it, in memory proportional to the depth."""
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            yield item
            if isinstance(item, _SCALARS):
                continue
            if isinstance(item, dict):
                stack.append(chain(item.keys(), item.values()))
                break
            if isinstance(item, _LISTS):
                stack.append(iter(item))
                break
        else:
            stack.pop()

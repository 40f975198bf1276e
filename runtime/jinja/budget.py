"""What a rendering may cost: steps that it takes, and characters that it makes."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from jinja2 import Undefined

from ortolan.runtime.errors import ChatTemplateError

__all__ = ["Budget", "count_values"]

BASE_STEPS = 30_000
"""Without any message; templates of published models take some hundreds."""

STEPS_PER_VALUE = 600
"""For each value that comes in: they take some dozens for a message of five values."""

BASE_CHARACTERS = 2 << 20
"""2 Mi, of all strings made on the way."""

GROWTH = 64
"""Times that each character of the input may be copied: trimmed, joined, written."""

MAX_INTEGER_BITS = 256
"""Templates count messages. Repeated squaring would fill the memory after some forty steps."""

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
    """What is left; each operation pays before it does something large.

    Args:
        values: how many the template is given, nested ones included.
        characters: of all their strings.
    """

    __slots__ = ("_characters", "_steps")

    def __init__(self, *, values: int, characters: int) -> None:
        self._steps = BASE_STEPS + STEPS_PER_VALUE * values
        self._characters = BASE_CHARACTERS + GROWTH * characters

    def step(self, count: int = 1) -> None:
        """Take steps.

        Raises:
            ChatTemplateError: there are not as many left.
        """
        self._steps -= count
        if self._steps < 0:
            raise ChatTemplateError(
                "chat template: expected it to end within the steps for these messages, got more. "
                "The template may not end at all; use another."
            )

    def text(self, length: int) -> None:
        """Take the characters of a string that is about to be made, or read to its end.

        Raises:
            ChatTemplateError: there are not as many left.
        """
        self._characters -= length
        if self._characters < 0:
            raise ChatTemplateError(
                "chat template: expected strings in proportion to these messages, got far longer "
                "ones. Use another template."
            )

    def walk(self, value: Any, times: int = 1) -> int:
        """Pay for going through all of a value, that many times; returns its characters.

        Lists that hold one list twice are small in memory and can be endless to go through.

        Raises:
            ChatTemplateError: there is too much of it, or a function or the like in it.
        """
        characters = 0
        for each in _nested(value):
            self.step(times)
            if isinstance(each, str):
                characters += len(each)
                self.text(times * len(each))
            elif not isinstance(each, _DATA):
                raise ChatTemplateError(
                    f"chat template: expected data, got a {type(each).__name__.lower()}. "
                    "Use another template."
                )
        return characters

    def made(self, value: Any) -> Any:
        """Pay for a value that was made, and pass it on; what a generator gives is made here.

        Raises:
            ChatTemplateError: it is too long, or an integer that grows out of hand.
        """
        if isinstance(value, Iterator):
            return iter(self.made([*value]))
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, list | tuple | dict):
            self.step(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise ChatTemplateError(
                f"chat template: expected integers of at most {MAX_INTEGER_BITS} bits, got one of "
                f"{value.bit_length()}. Use another template."
            )
        return value


def count_values(value: Any) -> tuple[int, int]:
    """How many values there are in plain data, and how many characters in its strings."""
    values = characters = 0
    for each in _nested(value):
        values += 1
        characters += len(each) if isinstance(each, str) else 0
    return values, characters


def _nested(value: Any) -> Iterator[Any]:
    """A value and all values in it, in memory that grows with their depth alone."""
    open_: list[Iterator[Any]] = [iter((value,))]
    while open_:
        for each in open_[-1]:
            yield each
            if isinstance(each, _SCALARS):
                continue
            if isinstance(each, dict):
                open_.append(chain(each.keys(), each.values()))
                break
            if isinstance(each, _LISTS):
                open_.append(iter(each))
                break
        else:
            open_.pop()

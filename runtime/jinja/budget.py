"""What a rendering may cost: steps of the evaluator, and characters that it makes."""

from collections.abc import Mapping
from typing import Any

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


class Budget:
    """What is left; each operation says what it costs before it does something large.

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
        """Take the characters of a string that is about to be made.

        Raises:
            ChatTemplateError: there are not as many left.
        """
        self._characters -= length
        if self._characters < 0:
            raise ChatTemplateError(
                "chat template: expected strings in proportion to these messages, got far longer "
                "ones. Use another template."
            )

    def integer(self, value: Any) -> Any:
        """Pass a number on.

        Raises:
            ChatTemplateError: it is an integer that grows out of hand.
        """
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise ChatTemplateError(
                f"chat template: expected integers of at most {MAX_INTEGER_BITS} bits, got one of "
                f"{value.bit_length()}. Use another template."
            )
        return value

    def walk(self, value: Any) -> None:
        """Take a step for each value inside a value, before something goes through all of them.

        Lists that hold one list twice are small in memory and can be endless to go through.

        Raises:
            ChatTemplateError: there are too many.
        """
        waiting = [value]
        while waiting:
            self.step()
            each = waiting.pop()
            if isinstance(each, str):
                self.text(len(each))
            elif isinstance(each, Mapping):
                waiting += [*each.keys(), *each.values()]
            elif isinstance(each, list | tuple):
                waiting += each


def count_values(value: Any) -> tuple[int, int]:
    """How many values there are in plain data, and how many characters in its strings."""
    values = characters = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        values += 1
        if isinstance(each, str):
            characters += len(each)
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
    return values, characters

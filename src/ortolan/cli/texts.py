"""Texts from the command line or from standard input."""

import sys
from collections.abc import Sequence


def read_stdin() -> str:
    """Standard input as text.

    Raises:
        InputError: it is not UTF-8.
    """
    from ortolan.runtime import InputError

    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input: expected UTF-8 text, got byte 0x{data[error.start]:02x} at "
            f"{error.start}. Convert the input."
        ) from error


def texts_of(arguments: Sequence[str]) -> list[str]:
    """The arguments; where one is `-`, the lines of standard input that are not empty."""
    texts: list[str] = []
    for argument in arguments:
        if argument == "-":
            texts += [line for line in read_stdin().splitlines() if line.strip()]
        else:
            texts.append(argument)
    return texts

"""The options of a beam search, as callers give them, checked.

Knows values and which options exclude each other. Does not know how a search goes.
"""

from collections.abc import Sized
from typing import Any

from ortolan.runtime.arguments import checked_count, checked_number
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.beam_search import EarlyStopping
from ortolan.runtime.generation.options import Options

__all__ = [
    "MAX_BEAMS",
    "MAX_LENGTH_PENALTY",
    "checked_early_stopping",
    "checked_length_penalty",
    "refuse_beam_options",
    "refuse_sampling_options",
]

MAX_BEAMS = 64
"""Beams of one source."""

MAX_LENGTH_PENALTY = 10.0
"""Beyond this the power of a length leaves the numbers that scores are computed in."""


def refuse_beam_options(n_best: Any, length_penalty: Any, early_stopping: Any) -> None:
    """Refuse what means nothing without beams.

    Raises:
        InputError: one of them is not its default.
    """
    for name, value, default in (
        ("n_best", checked_count("n_best", n_best), 1),
        ("length_penalty", checked_length_penalty(length_penalty), 1.0),
        ("early_stopping", checked_early_stopping(early_stopping), False),
    ):
        if value != default:
            raise InputError(
                f"{name}: expected {default!r} without a beam search, got {shown(value)}. "
                "Set beams above 1, or leave it out."
            )


def refuse_sampling_options(options: Options) -> None:
    """Refuse what means nothing with beams.

    Raises:
        InputError: one of them is given.
    """
    for name, value in options.items():
        is_empty = value is None or value is False or (isinstance(value, Sized) and not len(value))
        if name not in ("max_new_tokens", "cancel") and not is_empty:
            raise InputError(
                f"{name}: expected none in a beam search, which looks for the most probable "
                "text. Leave it out, or set beams to 1."
            )


def checked_length_penalty(penalty: Any) -> float:
    """A number that lengths can be raised to.

    Raises:
        InputError: it is none.
    """
    return checked_number("length_penalty", penalty, most=MAX_LENGTH_PENALTY)


def checked_early_stopping(value: Any) -> EarlyStopping:
    """When a search is over.

    Raises:
        InputError: not True, False or `never`.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "never":
        return "never"
    raise InputError(f'early_stopping: expected True, False or "never", got {shown(value)}.')

"""Token ids as callers give them, checked.

An id outside the vocabulary never reaches a kernel: some read past the end of a table, others
give zeros.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import ContextLengthError, InputError, shown

__all__ = ["TokenIds", "checked_ids"]

TokenIds = Iterable[int] | NDArray[np.integer[Any]]
"""One sequence of ids: a list, a tuple or an array of one axis."""


def checked_ids(
    ids: TokenIds, *, vocab_size: int, what: str, fewest: int = 0, most: int | None = None
) -> list[int]:
    """Give ids as plain integers.

    Args:
        ids: one sequence.
        vocab_size: ids are below it.
        what: names them in an error.
        fewest: how many there are at least, 0 or 1.
        most: how many there may be.

    Raises:
        ContextLengthError: more than `most`.
        InputError: fewer than `fewest`, not a sequence of whole numbers, or one outside the
            vocabulary.
    """
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"{what}: expected an array of integers with one axis, got {ids.dtype} with "
                f"{ids.ndim} axes. Give one sequence of token ids."
            )
        ids = ids.tolist()
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(
            f"{what}: expected token ids, got {type(ids).__name__}. Give a list of integers."
        )
    checked = list(ids)
    if len(checked) < fewest:
        raise InputError(f"{what}: expected at least one token id, got none.")
    if most is not None and len(checked) > most:
        raise ContextLengthError(
            f"{what}: expected at most {most} tokens, got {len(checked)}. Use a shorter sequence."
        )
    for position, token in enumerate(checked):
        # bool is an int in Python, and never an id
        if type(token) is not int and (
            isinstance(token, bool) or not isinstance(token, int | np.integer)
        ):
            raise InputError(
                f"{what}: expected token ids, got {type(token).__name__} at position {position}. "
                "Give a list of integers."
            )
        if not 0 <= token < vocab_size:
            raise InputError(
                f"{what}: expected ids from 0 to {vocab_size - 1}, got {shown(token)} at position "
                f"{position}. The ids are of another tokenizer."
            )
    return [int(token) for token in checked]

"""Token ids as callers give them, checked.

An id outside the vocabulary never reaches a kernel: some read past the end of a table, others
give zeros.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import InputError

__all__ = ["TokenIds", "checked_ids"]

TokenIds = Iterable[int] | NDArray[np.integer[Any]]
"""One sequence of ids: a list, a tuple or an array of one axis."""


def checked_ids(ids: TokenIds, *, vocab_size: int, what: str) -> list[int]:
    """Give ids as plain integers.

    Raises:
        InputError: not a sequence of whole numbers, or one outside the vocabulary.
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
                f"{what}: expected ids from 0 to {vocab_size - 1}, got {token} at position "
                f"{position}. The ids are of another tokenizer."
            )
    return [int(token) for token in checked]

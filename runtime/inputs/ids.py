"""Token ids, and checks of those from the caller.

An id outside the vocabulary must never reach a kernel: some read past the end of a table, others
return zeros.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import ContextLengthError, InputError, shown

TokenIds = Iterable[int] | NDArray[np.integer[Any]]
"""One sequence of token ids: a list, a tuple or a one-dimensional array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Where a token lies in its text.

    Attributes:
        start: first character.
        end: character after the last.
        continues_word: whether the word began in an earlier token. Exact for tokenizers that mark
            such tokens, as WordPiece does; for others, whether there is no space before it.
    """

    start: int
    end: int
    continues_word: bool


class TextIds(list[int]):
    """Token ids of a text, or of two as one input, and what is known of each.

    Attributes:
        text: a single text.
        types: token types of two texts.
        spans: characters of its tokens; None for special tokens.
        words: start and end in the second text of the words that tokens are part of; None for
            special tokens and those of the first text.
    """

    def __init__(
        self,
        ids: Sequence[int],
        *,
        text: str = "",
        types: Sequence[int] = (),
        spans: Sequence[TokenSpan | None] = (),
        words: Sequence[tuple[int, int] | None] = (),
    ) -> None:
        super().__init__(ids)
        self.text, self.types, self.spans, self.words = text, types, spans, words


def check_count(ids: Sequence[int], what: str, *, most: int) -> None:
    """Raise ContextLengthError if there are too many."""
    if len(ids) > most:
        raise ContextLengthError(
            f"{what} has {len(ids)} tokens, and the limit is {most}. Use a shorter sequence."
        )


def checked_ids(
    ids: TokenIds, *, vocab_size: int, what: str, fewest: int = 0, most: int | None = None
) -> list[int]:
    """Return token ids as plain integers."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"{what} must be a one-dimensional array of integers (got {ids.dtype} with "
                f"{ids.ndim} axes)."
            )
        ids = ids.tolist()
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(f"{what} must be a list of token ids (got {type(ids).__name__}).")
    checked = list(ids)
    if len(checked) < fewest:
        raise InputError(f"{what} has no token ids. Pass at least one.")
    if most is not None:
        check_count(checked, what, most=most)
    for position, token in enumerate(checked):
        # a bool is an int in Python, but never a token id
        if type(token) is not int and (
            isinstance(token, bool) or not isinstance(token, int | np.integer)
        ):
            raise InputError(
                f"{what} must contain token ids only (got {type(token).__name__} at position "
                f"{position})."
            )
        if not 0 <= token < vocab_size:
            raise InputError(
                f"{what} must contain ids from 0 to {vocab_size - 1} (got {shown(token)} at "
                f"position {position}). Use the tokenizer of this model."
            )
    return [int(token) for token in checked]

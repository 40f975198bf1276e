"""Calls of an encoder: some inputs, and the result that their outputs become."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.source import Source

R = TypeVar("R")

Row = NDArray[np.float32]
"""The output of one input: `(size,)`, or `(tokens, size)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One input of a call.

    Attributes:
        index: position in the call.
        length: number of tokens; of an image, roughly; vectors of a wave.
        ids: token ids of a text, or a wave.
        image: read when it is computed, since pixels need far more memory than files.
    """

    index: int
    length: int
    ids: Source | None = None
    image: Any = None


class EncoderCall(Generic[R]):
    """Inputs, and how their outputs become a result.

    Attributes:
        tokens: number of tokens of all texts, or of vectors of all waves.
        error: that ended the call, if any.
    """

    def __init__(self, items: Sequence[Item], finish: Callable[[list[Row]], R]) -> None:
        self.items = items
        self.tokens = sum(item.length for item in items if item.ids is not None)
        self._finish = finish
        self._rows: dict[int, Row] = {}
        self.error: OrtolanError | None = None
        self.was_cancelled = False

    @property
    def is_complete(self) -> bool:
        """Whether all outputs have come."""
        return len(self._rows) == len(self.items)

    @property
    def is_done(self) -> bool:
        """Whether all outputs have come, or the call has ended early."""
        return self.is_complete or self.error is not None or self.was_cancelled

    def put(self, item: Item, output: Row | OrtolanError) -> None:
        """Take the output of an input, or its error, which ends the call."""
        if isinstance(output, OrtolanError):
            self.fail(at_input(item.index, output) if len(self.items) > 1 else output)
        else:
            self._rows[item.index] = output

    def fail(self, error: OrtolanError) -> None:
        """End the call with an error."""
        self.error = self.error or error

    def cancel(self) -> None:
        """End the call."""
        self.was_cancelled = True

    def result(self) -> R:
        """The result."""
        if self.error is not None:
            raise self.error
        if self.was_cancelled:
            raise CancelledError("The request was cancelled.")
        if not self.is_done:
            raise InputError("result: the call has not ended.")
        return self._finish([self._rows[index] for index in range(len(self.items))])


def at_input(index: int, error: OrtolanError) -> OrtolanError:
    """The error of one of several inputs, with its position."""
    return type(error)(f"input {index}: {error}") if isinstance(error, InputError) else error

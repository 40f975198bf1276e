"""Calls of an encoder: some inputs, and the result that their outputs become."""

from asyncio import get_running_loop
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import time_limit
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.input_reader import ReadInput

R = TypeVar("R")

Row = NDArray[np.float32]
"""The output of one input: `(size,)`, or `(tokens, size)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One input of a call.

    Attributes:
        index: position in the call.
        length: number of tokens; of an image, roughly; vectors of a wave.
        value: what was read: token ids of a text, or a wave.
        unread: an image, read when it is computed, since pixels need far more memory than files.
    """

    index: int
    length: int
    value: ReadInput | None = None
    unread: Any = None


class EncoderCall(Future[Any], Generic[R]):
    """A request to an encoder: a `concurrent.futures.Future`, which tasks can await, too.

        vectors = call.result()     # or: await call

    `cancel` ends it before the next batch. Leaving a `with` block cancels it if it is unfinished.
    Callbacks run in the thread of the service, so they should be short, and wait for nothing.

    Attributes:
        items: its inputs.
        tokens: number of tokens of all texts, special tokens included; of vectors of all waves.
    """

    def __init__(self, items: Sequence[Item], finish: Callable[[list[Row]], R]) -> None:
        super().__init__()
        self.items = items
        self.tokens = sum(item.length for item in items if item.value is not None)
        self.check: Callable[[], None] = lambda: None  # raises in a forked process
        self._finish = finish
        self._rows: dict[int, Row] = {}
        if not items:
            self.set_result(None)

    # --- for the caller ---------------------------------------------------------------------------

    def cancel(self) -> bool:
        """End the call, unless it has ended. Returns whether it was cancelled."""
        self.check()
        return super().cancel()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result, at most this number of seconds; the call continues after them.

        Raises:
            TimeoutError: the wait ended first.
            concurrent.futures.CancelledError: the call was cancelled.
            OrtolanError: an input is not valid, or could not be computed.
        """
        self.check()
        with time_limit(timeout) as seconds:
            super().result(seconds)
        return self._finish([self._rows[index] for index in range(len(self.items))])

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result. Cancelling the task that waits does not cancel the call."""
        self.check()
        loop = get_running_loop()
        ended = loop.create_future()

        def resolve() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # a closed loop has no waiting task
                loop.call_soon_threadsafe(resolve)

        self.add_done_callback(wake)
        yield from ended
        return self.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.done():
            self.cancel()

    # --- for the thread that computes -------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all outputs have come."""
        return len(self._rows) == len(self.items)

    @property
    def is_done(self) -> bool:
        """Whether the call has ended."""
        return self.done()

    @property
    def was_cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self.cancelled()

    @property
    def error(self) -> OrtolanError | None:
        """The error that ended the call, if any."""
        try:
            error = self.exception(0)
        except (TimeoutError, CancelledError):
            return None
        return error if isinstance(error, OrtolanError) else None

    def put(self, item: Item, output: Row | OrtolanError) -> None:
        """Take the output of an input, or its error, which ends the call."""
        if isinstance(output, OrtolanError):
            self.fail(at_input(item.index, output) if len(self.items) > 1 else output)
            return
        self._rows[item.index] = output
        if self.is_complete:
            with suppress(InvalidStateError):  # cancelled meanwhile
                self.set_result(None)

    def fail(self, error: OrtolanError) -> None:
        """End the call with an error, unless it has ended."""
        with suppress(InvalidStateError):
            self.set_exception(error)


def at_input(index: int, error: OrtolanError) -> OrtolanError:
    """The error of one of several inputs, with its position."""
    return type(error)(f"input {index}: {error}") if isinstance(error, InputError) else error

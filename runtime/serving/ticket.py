"""Tickets: requests of a service, for the threads or tasks that submitted them."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import checked_seconds
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.encoding.call import EncoderCall
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.serving.signals import Signal, Woken

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question


Work = SampledSequence | EncoderCall[Any]
"""A request while a service computes it."""

W = TypeVar("W", bound=Work)
R = TypeVar("R")


class BaseTicket(ABC, Generic[W, R]):
    """A request and its result. Any thread and any event loop may use it."""

    def __init__(
        self,
        work: W,
        *,
        lock: threading.Lock,
        cancel: "Callable[[BaseTicket[Any, Any]], None]",
        check: Callable[[], None],
    ) -> None:
        self.work = work
        self._cancel = cancel
        self._check = check
        self._end = Signal(lock)
        self._is_done = False
        self._error: OrtolanError | None = None

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the request has ended, read or not."""
        return self._is_done

    @property
    def error(self) -> OrtolanError | None:
        """The error that the result raises, once the request has ended."""
        return self._error or self.work.error

    def cancel(self) -> None:
        """End the request before the next call of the model.

        Cancelling a finished request does nothing.
        """
        self._check()
        self._cancel(self)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result.

        Args:
            timeout: maximum wait in seconds; `None` waits without limit.

        Raises:
            TimeoutError: the wait ended first; the request continues.
            concurrent.futures.CancelledError: a request of an encoder was cancelled.
            InputError: the timeout is not a number, or an image is not valid.
            NumericError: the output is not finite.
            MemoryPlanError: there was not enough memory when it was the request's turn.
            ServiceError: the service failed.
            ForkedError: the process was forked after loading.
        """
        self._check()
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        try:
            self._end.wait(lambda: self._is_done or None, seconds)
        except TimeoutError:
            raise TimeoutError(
                f"The result was not ready within {timeout} s. Wait longer, or cancel."
            ) from None
        return self._result()

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result."""
        return self._awaited().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self.cancel()

    # --- for the service, with the lock held ------------------------------------------------------

    def deliver(self, woken: Woken) -> bool:
        """Hand over what is new, and return whether the request has ended."""
        if self.work.is_done:
            self.end(woken)
        return self._is_done

    def end(self, woken: Woken) -> None:
        """Tell all readers that the request has ended."""
        self._is_done = True
        self._end.send(woken)

    def fail(self, error: OrtolanError) -> None:
        """Set the error that the result raises; call `end` after it."""
        self._error = self._error or error

    # ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _completed(self) -> R:
        """The result of a request that has ended without an error of the service."""

    async def _awaited(self) -> R:
        self._check()
        await self._end.awaited(lambda: self._is_done or None)
        return self._result()

    def _result(self) -> R:
        if self._error is not None:
            raise self._error
        return self._completed()


class EncoderTicket(BaseTicket[EncoderCall[R], R]):
    """A request of an encoder's service. Any thread and any event loop may use it.

        vectors = ticket.result()     # or: await ticket

    Leaving a `with` block cancels an unfinished request.
    """

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts, special tokens included."""
        return self.work.tokens

    def _completed(self) -> R:
        return self.work.result()


class Ticket(BaseTicket[SampledSequence, R], Iterator[Piece], AsyncIterator[Piece]):
    """A request of a service. Any thread and any event loop may use it.

        for piece in ticket: ...             # or: async for piece in ticket
        for piece in ticket.pieces(): ...    # the same, but pieces are never joined
        completion = ticket.result()         # or: await ticket

    The result is a completion, or a reply if the request is a chat. Pieces go to one reader; a slow
    reader gets several joined. A piece never ends inside a character or a stop text, and has the
    tokens that it completes; the last one may have tokens only, such as EOS. The result is complete
    whether they are read or not. Leaving a `with` block cancels an unfinished request; its result
    holds what was generated so far.
    """

    def __init__(
        self,
        sequence: SampledSequence,
        *,
        question: "Question | None",
        has_text: bool,
        lock: threading.Lock,
        cancel: Callable[[BaseTicket[Any, Any]], None],
        check: Callable[[], None],
    ) -> None:
        super().__init__(sequence, lock=lock, cancel=cancel, check=check)
        self._result_of: Callable[[Completion], Any] = question.reply if question else _same
        self._parser = None if question is None else question.parser()
        self._has_text = has_text
        self._more = Signal(lock)
        self._most: int | None = None
        # unread texts, each with the number of tokens so far
        self._pending: deque[tuple[str, int]] = deque()
        self._pieces: deque[Piece] = deque()
        self._read_tokens = 0
        self._has_ended = False

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens."""
        return self.work.prompt_progress

    @property
    def new_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.work.tokens)

    def pieces(self) -> Self:
        """Read the pieces, from now on one for each call of the model.

        Their tokens and log-probabilities join to those of the completion. In a chat, a token
        belongs to the piece that it completes, so those of markers such as `</think>` come with the
        piece after them.

        Raises:
            TokenizerError: the bundle has no tokenizer.
        """
        self._check_text()
        self._most = 1
        return self

    def __next__(self) -> Piece:
        """Wait for the next piece; raises what `result` does at the end."""
        self._check_text()
        while not self._pieces and not self._has_ended:
            self._read(self._more.wait(self._take))
        if not self._pieces:
            self._result()
            raise StopIteration
        return self._pieces.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `result` does at the end."""
        self._check_text()
        while not self._pieces and not self._has_ended:
            self._read(await self._more.awaited(self._take))
        if not self._pieces:
            self._result()
            raise StopAsyncIteration
        return self._pieces.popleft()

    # --- for the service, with the lock held ------------------------------------------------------

    def deliver(self, woken: Woken) -> bool:
        """Hand the new text to the reader, and return whether the sequence has ended."""
        text = self.work.take()
        if text:
            self._pending.append((text, len(self.work.tokens)))
            self._more.send(woken)
        return super().deliver(woken)

    def end(self, woken: Woken) -> None:
        """Tell all readers that the request has ended."""
        self._more.send(woken)
        super().end(woken)

    # ----------------------------------------------------------------------------------------------

    def _take(self) -> list[tuple[str, int]] | None:
        """Remove unread texts: none at the end, `None` if there are none yet."""
        if not self._pending:
            return [] if self._is_done else None
        count = self._most or len(self._pending)
        return [self._pending.popleft() for _ in range(count)]

    def _read(self, texts: list[tuple[str, int]]) -> None:
        """Turn texts into pieces, the first of which gets all tokens that no piece has yet."""
        self._has_ended = not texts
        text = "".join(text for text, _ in texts)
        end = texts[-1][1] if texts else len(self.work.tokens)
        pieces: Iterable[Piece] = (Piece(content=text),) if text else ()
        if self._parser is not None:
            pieces = self._parser.feed(text) if texts else self._parser.finish()
        self._pieces.extend(pieces)
        if end > self._read_tokens and (self._pieces or self._has_ended):
            first = self._pieces.popleft() if self._pieces else Piece()
            start, self._read_tokens = self._read_tokens, end
            self._pieces.appendleft(self._with_tokens(first, start, end))

    def _with_tokens(self, piece: Piece, start: int, end: int) -> Piece:
        sequence = self.work
        has_logprobs = sequence.request.logprobs is not None
        return replace(
            piece,
            tokens=tuple(sequence.tokens[start:end]),
            logprobs=tuple(sequence.logprobs[start:end]) if has_logprobs else None,
        )

    def _completed(self) -> R:
        result: R = self._result_of(self.work.completion())
        return result

    def _check_text(self) -> None:
        self._check()
        if not self._has_text:
            raise no_tokenizer("read pieces")


def _same(completion: Completion) -> Completion:
    return completion

"""Tickets: requests that generate, for the threads or tasks that submitted them."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import time_limit
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.serving.signals import Signal, Woken

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question
    from ortolan.runtime.generation.completion import Completion
    from ortolan.runtime.serving.worker import Worker

R = TypeVar("R")


class Ticket(Iterator[Piece], AsyncIterator[Piece], Generic[R]):
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
        worker: "Worker",
        check: Callable[[], None],
    ) -> None:
        self.work = sequence
        self._worker = worker
        self._check = check
        self._result_of: Callable[[Completion], Any] = (
            (lambda completion: completion) if question is None else question.reply
        )
        self._parser = None if question is None else question.parser()
        self._has_text = has_text
        self._end, self._more = Signal(worker.lock), Signal(worker.lock)
        self._is_done = False
        self._most: int | None = None
        # unread texts, each with the number of tokens so far
        self._pending: deque[tuple[str, int]] = deque()
        self._pieces: deque[Piece] = deque()
        self._read_tokens = 0
        self._has_ended = False

    # --- for the caller ---------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether the request has ended, read or not."""
        return self._is_done

    @property
    def error(self) -> OrtolanError | None:
        """The error that the result raises, once the request has ended."""
        return self.work.error

    def cancel(self) -> None:
        """End the request before the next call of the model.

        Cancelling a finished request does nothing.
        """
        self._check()
        self._worker.cancel(self.work)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result.

        Args:
            timeout: maximum wait in seconds; `None` waits without limit.

        Raises:
            TimeoutError: the wait ended first; the request continues.
            InputError: the timeout is not a number.
            NumericError: the output is not finite.
            MemoryPlanError: there was not enough memory when it was the request's turn.
            ServiceError: the service failed.
            ForkedError: the process was forked after loading.
        """
        self._check()
        with time_limit(timeout) as seconds:
            self._end.wait(lambda: self._is_done or None, seconds)
        return self._result()

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result."""
        return self._awaited().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self.cancel()

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

    def deliver(self, woken: Woken) -> None:
        """Hand new text to the reader, and tell the end. The worker calls it, with its lock."""
        text, self._is_done = self.work.take(), self.work.is_done
        if text:
            self._pending.append((text, len(self.work.tokens)))
        if text or self._is_done:
            self._more.send(woken)
        if self._is_done:
            self._end.send(woken)

    # ----------------------------------------------------------------------------------------------

    async def _awaited(self) -> R:
        self._check()
        await self._end.awaited(lambda: self._is_done or None)
        return self._result()

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
            new, self._read_tokens = slice(self._read_tokens, end), end
            scored = self.work.request.logprobs is not None
            logprobs = tuple(self.work.logprobs[new]) if scored else None
            first = replace(first, tokens=tuple(self.work.tokens[new]), logprobs=logprobs)
            self._pieces.appendleft(first)

    def _result(self) -> R:
        result: R = self._result_of(self.work.completion())
        return result

    def _check_text(self) -> None:
        self._check()
        if not self._has_text:
            raise no_tokenizer("read pieces")

"""Tickets of generation: text, piece by piece, and the completion."""

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from ortolan.runtime.generation.completion import Completion, TokenLogprobs
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.serving.base_ticket import BaseTicket
from ortolan.runtime.serving.signals import Signal, Woken


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Part of a completion: its texts join to the text, its tokens to the tokens.

    Attributes:
        text: the new text; may be empty in the last piece, such as that of EOS.
        tokens: the new ids; the text of the last one ends in this piece.
        logprobs: one entry per token; `None` unless the request asks for them.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None


class Ticket(BaseTicket[SampledSequence, Completion], Iterator[str], AsyncIterator[str]):
    """A request of a service. Any thread and any event loop may use it.

        for text in ticket: ...              # or: async for text in ticket
        for piece in ticket.pieces(): ...    # with tokens and log-probabilities
        completion = ticket.completion()     # or: await ticket

    Text goes to one reader; a slow reader gets several pieces joined. A piece never ends inside a
    character or a stop text. Leaving a `with` block cancels an unfinished request; its completion
    holds what was generated so far.

    Args:
        sequence: of the request.
        has_pieces: whether the bundle has a tokenizer.
        lock: of the service.
        cancel: tells the service to cancel this ticket.
        check: raises in a process that is not the service's.
    """

    def __init__(
        self,
        sequence: SampledSequence,
        *,
        has_pieces: bool,
        lock: threading.Lock,
        cancel: Callable[[BaseTicket[Any, Any]], None],
        check: Callable[[], None],
    ) -> None:
        super().__init__(sequence, lock=lock, cancel=cancel, check=check)
        self._has_pieces = has_pieces
        self._more = Signal(lock)
        # unread texts, each with the number of tokens so far
        self._pending: deque[tuple[str, int]] = deque()
        self._read_tokens = 0

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens."""
        return self.work.prompt_progress

    @property
    def new_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.work.tokens)

    def pieces(self) -> "TextPieces":
        """Read the text with its tokens and log-probabilities, instead of the text alone.

        Pieces are not joined: each is what one call of the model added.

        Raises:
            TokenizerError: the bundle has no tokenizer.
        """
        self._check_pieces()
        return TextPieces(self)

    def completion(self, timeout: float | None = None) -> Completion:
        """Wait for the completion.

        Args:
            timeout: maximum wait in seconds; `None` waits without limit.

        Raises:
            TimeoutError: the wait ended first; the request continues.
            InputError: the timeout is not a number.
            NumericError: the logits are not finite.
            MemoryPlanError: there was not enough memory when it was the request's turn.
            ServiceError: the service failed.
            ForkedError: the process was forked after loading.
        """
        return self._waited(timeout, "completion")

    def __next__(self) -> str:
        """Wait for the next text; raises what `completion` does at the end."""
        text = _joined(self.next_pieces())
        if not text:
            self._result()
            raise StopIteration
        return text

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next text; raises what `completion` does at the end."""
        text = _joined(await self.anext_pieces())
        if not text:
            self._result()
            raise StopAsyncIteration
        return text

    # --- for readers ------------------------------------------------------------------------------

    def next_pieces(self, most: int | None = None) -> list[TextPiece]:
        """Wait for unread pieces, and return the first `most`; none at the end."""
        self._check_pieces()
        return self._more.wait(lambda: self._take(most))

    async def anext_pieces(self, most: int | None = None) -> list[TextPiece]:
        """Wait for unread pieces, and return the first `most`; none at the end."""
        self._check_pieces()
        return await self._more.awaited(lambda: self._take(most))

    def raise_error(self) -> None:
        """Raise what `completion` raises; call it at the end of the pieces."""
        self._result()

    def piece(self, text: str, start: int, end: int) -> TextPiece:
        """A piece with the tokens from `start` to `end`."""
        sequence = self.work
        has_logprobs = sequence.request.logprobs is not None
        return TextPiece(
            text=text,
            tokens=tuple(sequence.tokens[start:end]),
            logprobs=tuple(sequence.logprobs[start:end]) if has_logprobs else None,
        )

    # --- for the service, with the lock held ------------------------------------------------------

    def deliver(self, woken: Woken) -> bool:
        """Hand the new text to the reader, and return whether the sequence has ended."""
        text, is_done = self.work.take(), self.work.is_done
        if text:
            self._pending.append((text, len(self.work.tokens)))
            self._more.send(woken)
        if is_done:
            self.end(woken)
        return is_done

    def end(self, woken: Woken) -> None:
        """Tell all readers that the request has ended."""
        self._pending.append(("", len(self.work.tokens)))
        self._more.send(woken)
        super().end(woken)

    # ----------------------------------------------------------------------------------------------

    def _take(self, most: int | None) -> list[TextPiece] | None:
        """Remove the first `most` unread pieces: none at the end, `None` if there are none yet."""
        if not self._pending and not self._is_done:
            return None
        pieces: list[TextPiece] = []
        while self._pending and len(pieces) != most:
            text, end = self._pending.popleft()
            start, self._read_tokens = self._read_tokens, end
            if text or end > start:
                pieces.append(self.piece(text, start, end))
        return pieces

    def _completed(self) -> Completion:
        return self.work.completion()

    def _check_pieces(self) -> None:
        self._check()
        if not self._has_pieces:
            raise no_tokenizer("read pieces")


class TextPieces(Iterator[TextPiece], AsyncIterator[TextPiece]):
    """The pieces of a ticket, for a thread or a task."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def __next__(self) -> TextPiece:
        """Wait for the next piece; raises what `Ticket.completion` does at the end."""
        for piece in self._ticket.next_pieces(1):
            return piece
        self._ticket.raise_error()
        raise StopIteration

    async def __anext__(self) -> TextPiece:
        """Wait for the next piece; raises what `Ticket.completion` does at the end."""
        for piece in await self._ticket.anext_pieces(1):
            return piece
        self._ticket.raise_error()
        raise StopAsyncIteration


def _joined(pieces: list[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces)

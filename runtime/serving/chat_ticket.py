"""Chat tickets: one question to a service, for the thread or task that asked it."""

from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.generation.completion import Completion

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question
    from ortolan.runtime.serving.ticket import TextPiece, Ticket


class ChatTicket(Iterator[Piece], AsyncIterator[Piece]):
    """A reply that a service generates. Any thread and any event loop may use it.

        for piece in ticket: ...             # or: async for piece in ticket
        for piece in ticket.pieces(): ...    # with tokens and log-probabilities
        reply = ticket.reply()               # or: await ticket

    Pieces go to one reader; each holds content, reasoning or one tool call. The reply is complete
    whether they are read or not. Leaving a `with` block cancels an unfinished reply.

    Args:
        ticket: of the request.
        question: that it answers.
    """

    def __init__(self, ticket: "Ticket", question: "Question") -> None:
        self._ticket = ticket
        self._question = question
        self._text = _TicketText(ticket)
        self._pieces = ReplyStream(self._text, question.parser())

    @property
    def done(self) -> bool:
        """Whether generation has ended, read or not."""
        return self._ticket.done

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens."""
        return self._ticket.prompt_progress

    @property
    def new_tokens(self) -> int:
        """Number of tokens generated so far."""
        return self._ticket.new_tokens

    def pieces(self) -> "ReplyPieces":
        """Read pieces with their tokens and log-probabilities.

        The tokens of all pieces join to those of the completion. A token belongs to the piece that
        it completes, so those of markers such as `</think>` come with the piece after them. The
        last piece may hold tokens only.
        """
        return ReplyPieces(self._pieces, self._text)

    def cancel(self) -> None:
        """End the reply; see `Ticket.cancel`."""
        self._ticket.cancel()

    def reply(self, timeout: float | None = None) -> Reply:
        """Wait for the reply. Same arguments and errors as `Ticket.completion`."""
        return self._question.reply(self._ticket.completion(timeout))

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the reply; raises what `reply` does."""
        return self._question.reply((yield from self._ticket.__await__()))

    def __next__(self) -> Piece:
        """Wait for the next piece; raises what `reply` does at the end."""
        return next(self._pieces)

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `reply` does at the end."""
        return await anext(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.done:
            self.cancel()


class ReplyPieces(Iterator[Piece], AsyncIterator[Piece]):
    """The pieces of a reply with their tokens, for a thread or a task."""

    def __init__(self, stream: ReplyStream, text: "_TicketText") -> None:
        self._stream = stream
        self._text = text
        text.most = 1

    def __next__(self) -> Piece:
        """Wait for the next piece; raises what `ChatTicket.reply` does at the end."""
        piece = self._with_tokens(next(self._stream, None))
        if piece is None:
            raise StopIteration
        return piece

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `ChatTicket.reply` does at the end."""
        piece = self._with_tokens(await anext(self._stream, None))
        if piece is None:
            raise StopAsyncIteration
        return piece

    def _with_tokens(self, piece: Piece | None) -> Piece | None:
        """Add the tokens since the last piece; `None` after all pieces and tokens."""
        read = self._text.take_tokens()
        if piece is None and not read.tokens:
            return None
        return replace(piece or Piece(), tokens=read.tokens, logprobs=read.logprobs)


def reply_stream(ticket: "Ticket", question: "Question") -> ReplyStream:
    """Pieces of a reply, for a thread or an event loop. Closing it cancels the ticket."""
    return ReplyStream(_TicketText(ticket), question.parser())


class _TicketText(Iterator[str], AsyncIterator[str]):
    """Adapts a ticket to what a `ReplyStream` reads.

    Attributes:
        most: maximum number of pieces of the ticket to join.
    """

    def __init__(self, ticket: "Ticket") -> None:
        self.most: int | None = None
        self._ticket = ticket
        self._read_tokens = self._taken_tokens = 0

    @property
    def completion(self) -> Completion:
        return self._ticket.completion()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        return self._ticket.prompt_progress

    def close(self) -> None:
        self._ticket.cancel()

    def take_tokens(self) -> "TextPiece":
        """Return the tokens read since the last call, without text."""
        start, self._taken_tokens = self._taken_tokens, self._read_tokens
        return self._ticket.piece("", start, self._read_tokens)

    def __next__(self) -> str:
        pieces = self._ticket.next_pieces(self.most)
        if not pieces:
            self._ticket.raise_error()
            raise StopIteration
        return self._text_of(pieces)

    async def __anext__(self) -> str:
        pieces = await self._ticket.anext_pieces(self.most)
        if not pieces:
            self._ticket.raise_error()
            raise StopAsyncIteration
        return self._text_of(pieces)

    def _text_of(self, pieces: "list[TextPiece]") -> str:
        self._read_tokens += sum(len(piece.tokens) for piece in pieces)
        return "".join(piece.text for piece in pieces)

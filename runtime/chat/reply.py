"""A reply of a model: as a whole, or piece by piece while it is generated."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ortolan.runtime.errors import InputError

if TYPE_CHECKING:
    from ortolan.runtime.chat.call_bodies import ToolCall
    from ortolan.runtime.chat.parser import Piece, ReplyParser
    from ortolan.runtime.generation.completion import Completion

__all__ = ["Pieces", "Reply", "ReplyStream", "reply_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model answered.

    Attributes:
        content: the answer.
        reasoning: what it wrote before the answer, of models that do.
        tool_calls: what it asks for; answer each by a message of role `tool`.
        completion: the text as it was generated, its tokens, why it ended, and timings.
    """

    content: str
    reasoning: str
    tool_calls: "tuple[ToolCall, ...]"
    completion: "Completion"

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message, to go on with."""
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in self.tool_calls
        ]
        return {
            "role": "assistant",
            "content": self.content,
            **({"reasoning_content": self.reasoning} if self.reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        }


class Pieces(Protocol):
    """A text that comes piece by piece: a `TextStream`, or one of a service."""

    @property
    def completion(self) -> "Completion":
        """Everything that was generated, as soon as it has ended."""

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are done, and how many there are. Any thread may ask."""

    def __next__(self) -> str: ...

    def close(self) -> None:
        """Stop generating."""


class ReplyStream(Iterator["Piece"], AsyncIterator["Piece"]):
    """Pieces of a reply as it is generated. Stops early by `close`, or at the end of a `with`.

    One from a service may also be read by `async for`, or awaited for the whole reply.

    Attributes:
        at_end: called with the reply, once, after the last piece.
    """

    def __init__(self, text: Pieces, parser: "ReplyParser") -> None:
        self.at_end: Callable[[Reply], None] | None = None
        self._stream = text
        self._parser = parser
        self._pieces: list[Piece] = []
        self._waiting: list[Piece] = []
        self._has_ended = False

    @property
    def reply(self) -> Reply:
        """The whole reply, as soon as the stream has ended.

        Raises:
            InputError: it has not; read it to the end or close it.
        """
        if not self._has_ended:
            raise InputError(
                "reply: expected a finished stream, got one that is not. "
                "Read it to the end, or close it."
            )
        return reply_of(self._pieces, self._stream.completion)

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are done, and how many there are. Any thread may ask."""
        return self._stream.prompt_progress

    def finish(self) -> Reply:
        """Read to the end, and take the whole reply."""
        for _ in self:
            pass
        return self.reply

    def close(self) -> None:
        """Stop generating; what came so far is the reply. Closing twice is no error."""
        self._stream.close()
        for _ in self:
            pass

    def __next__(self) -> "Piece":
        while self._needs_text:
            self._take(next(self._stream, None))
        piece = self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    async def __anext__(self) -> "Piece":
        """Wait for the next piece.

        Raises:
            InputError: the stream is not from a service.
        """
        text = self._stream
        if not isinstance(text, AsyncIterator):
            raise InputError(
                "This stream computes in the thread that reads it, so an event loop cannot wait "
                "for it. Read it with `for`, or ask a service: `model.serve()`."
            )
        while self._needs_text:
            self._take(await anext(text, None))
        piece = self._next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, None, Reply]:
        """Read to the end, and take the whole reply; raises what `__anext__` does."""
        return self._finished().__await__()

    async def _finished(self) -> Reply:
        async for _ in self:
            pass
        return self.reply

    @property
    def _needs_text(self) -> bool:
        return not self._waiting and not self._has_ended

    def _take(self, text: str | None) -> None:
        """Take the next text, `None` at its end."""
        self._has_ended = text is None
        self._waiting += self._parser.finish() if text is None else self._parser.feed(text)

    def _next_piece(self) -> "Piece | None":
        """The next piece; `None` after the last one, when `at_end` has been told."""
        if self._waiting:
            self._pieces.append(self._waiting.pop(0))
            return self._pieces[-1]
        tell, self.at_end = self.at_end, None
        if tell is not None:
            tell(self.reply)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # an error in the text itself would only come again
        self.close() if kind is None else self._stream.close()


def reply_of(pieces: "list[Piece]", completion: "Completion") -> Reply:
    """Put the pieces of a reply together."""
    return Reply(
        content="".join(piece.content for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=tuple(piece.tool_call for piece in pieces if piece.tool_call is not None),
        completion=completion,
    )

"""A reply, complete or streamed piece by piece."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Self

from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.parser import Piece, ReplyParser
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.completion import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a conversation.

    Attributes:
        content: the answer.
        reasoning: reasoning before the answer; empty for models without it.
        tool_calls: calls that the model asks for; answer each with a message of role `tool`.
        completion: raw text, tokens, finish reason and timings.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    completion: Completion

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message, to append to the conversation."""
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


class ReplyStream(Iterator[Piece], AsyncIterator[Piece]):
    """Pieces of a reply while it is generated. `close`, or the end of a `with`, stops it early.

    A stream from a service also supports `async for`, and `await` for the complete reply; its
    pieces have their tokens.

    Attributes:
        at_end: called once with the reply, after the last piece.
    """

    def __init__(
        self,
        pieces: Iterator[Piece],
        *,
        completion: Callable[[], Completion],
        stop: Callable[[], None],
        progress: Callable[[], tuple[int, int]],
    ) -> None:
        self.at_end: Callable[[Reply], None] | None = None
        self._pieces = pieces
        self._completion = completion
        self._stop = stop
        self._progress = progress
        self._read: list[Piece] = []
        self._has_ended = False

    @property
    def reply(self) -> Reply:
        """The complete reply.

        Raises:
            InputError: the stream has not ended.
        """
        if not self._has_ended:
            raise InputError("The reply is not complete. Read the stream to the end, or close it.")
        return reply_of(self._read, self._completion())

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Processed prompt tokens and their total. Thread-safe."""
        return self._progress()

    def finish(self) -> Reply:
        """Read to the end and return the reply."""
        for _ in self:
            pass
        return self.reply

    def close(self) -> None:
        """Stop generating; the reply is what has come so far. Closing twice is allowed."""
        self._stop()
        for _ in self:
            pass

    def __next__(self) -> Piece:
        piece = next(self._pieces, None)
        if piece is None:
            self._end()
            raise StopIteration
        self._read.append(piece)
        return piece

    async def __anext__(self) -> Piece:
        """Wait for the next piece.

        Raises:
            InputError: the stream is not from a service.
        """
        if not isinstance(self._pieces, AsyncIterator):
            raise InputError(
                "An event loop cannot wait for this stream, which computes in the thread that "
                "reads it. Read it with `for`, or use a service: `model.serve()`."
            )
        piece: Piece | None = await anext(self._pieces, None)
        if piece is None:
            self._end()
            raise StopAsyncIteration
        self._read.append(piece)
        return piece

    def __await__(self) -> Generator[Any, None, Reply]:
        """Read to the end and return the reply."""
        return self._finished().__await__()

    async def _finished(self) -> Reply:
        async for _ in self:
            pass
        return self.reply

    def _end(self) -> None:
        self._has_ended = True
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            at_end(self.reply)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # after an error, reading the rest would raise it again
        self.close() if kind is None else self._stop()


class ParsedTexts(Iterator[Piece]):
    """The pieces of texts that are still generated."""

    def __init__(self, texts: Iterator[str], parser: ReplyParser) -> None:
        self._texts = texts
        self._parser = parser
        self._waiting: list[Piece] = []
        self._has_ended = False

    def __next__(self) -> Piece:
        while not self._waiting and not self._has_ended:
            text = next(self._texts, None)
            self._has_ended = text is None
            self._waiting += self._parser.finish() if text is None else self._parser.feed(text)
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop(0)


def reply_of(pieces: list[Piece], completion: Completion) -> Reply:
    """Join the pieces of a reply."""
    return Reply(
        content="".join(piece.content for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=tuple(piece.tool_call for piece in pieces if piece.tool_call is not None),
        completion=completion,
    )

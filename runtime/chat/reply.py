"""A reply of a model: as a whole, or piece by piece while it is generated."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ortolan.runtime.chat.call_bodies import ToolCall
from ortolan.runtime.chat.parser import Piece, ReplyParser
from ortolan.runtime.errors import InputError

if TYPE_CHECKING:
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
    tool_calls: tuple[ToolCall, ...]
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


class ReplyStream(Iterator[Piece]):
    """Pieces of a reply as it is generated. Stops early by `close`, or at the end of a `with`.

    Attributes:
        at_end: called with the reply, once, after the last piece.
    """

    def __init__(self, text: Pieces, parser: ReplyParser) -> None:
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

    def __next__(self) -> Piece:
        while not self._waiting:
            if self._has_ended:
                tell, self.at_end = self.at_end, None
                if tell is not None:
                    tell(self.reply)
                raise StopIteration
            try:
                self._waiting += self._parser.feed(next(self._stream))
            except StopIteration:
                self._has_ended = True
                self._waiting += self._parser.finish()
        piece = self._waiting.pop(0)
        self._pieces.append(piece)
        return piece

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


def reply_of(pieces: list[Piece], completion: "Completion") -> Reply:
    """Put the pieces of a reply together."""
    return Reply(
        content="".join(piece.content for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=tuple(piece.tool_call for piece in pieces if piece.tool_call is not None),
        completion=completion,
    )

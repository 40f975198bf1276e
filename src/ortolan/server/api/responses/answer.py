"""Turns the pieces of a reply into output items and events."""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ortolan.runtime import Piece, Reply, Tokenizer, ToolCall
from ortolan.server.api.bodies import new_id
from ortolan.server.api.logprobs import TokenLogprob, logprobs_of
from ortolan.server.api.replies import ReplyPieces
from ortolan.server.api.responses.resource import (
    CachedTokens,
    Event,
    FunctionCall,
    IncompleteDetails,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ReasoningTokens,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
)
from ortolan.server.errors import ApiError, error_body


class Answer:
    """A response while it is generated.

    Events hold the response and its items themselves, so encode each before you ask for the next.

    Attributes:
        response: what has been generated so far.
        at_end: called with the complete response, before its last event.
    """

    def __init__(
        self, response: Response, tokenizer: Tokenizer, *, at_end: Callable[[Response], None]
    ) -> None:
        self.response = response
        self._tokenizer = tokenizer
        self._at_end = at_end
        self._count = 0
        self._open: OutputMessage | ReasoningItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._reasoning_tokens = 0

    async def events(self, pieces: ReplyPieces) -> AsyncIterator[Event]:
        """Yield all events of a reply; raises what `Ticket.result` does."""
        yield self._event("created", response=self.response)
        yield self._event("in_progress", response=self.response)
        async for piece in pieces:
            for event in self._piece(piece):
                yield event
        for event in self._finished(await pieces.reply()):
            yield event

    def failed(self, error: ApiError) -> Iterator[Event]:
        """Yield the last events of a response that failed."""
        self.response.status = "failed"
        self.response.error = ResponseError(code=error.code or error.type, message=error.message)
        yield Event(type="error", sequence_number=self._count, error=error_body(error).error)
        self._count += 1
        yield self._event("failed", response=self.response)

    def _piece(self, piece: Piece) -> Iterator[Event]:
        if piece.tool_call is not None:
            yield from self._close("completed")
            yield from self._call(piece.tool_call)
        elif piece.reasoning:
            self._reasoning_tokens += len(piece.tokens)
            yield from self._reopened(ReasoningItem)
            self._texts.append(piece.reasoning)
            yield self._part_event("reasoning.delta", delta=piece.reasoning)
        elif piece.content:
            yield from self._reopened(OutputMessage)
            self._texts.append(piece.content)
            scored = logprobs_of(piece.logprobs, self._tokenizer)
            logprobs = [] if scored is None else scored.content
            self._logprobs += logprobs
            yield self._part_event("output_text.delta", delta=piece.content, logprobs=logprobs)

    def _finished(self, reply: Reply) -> Iterator[Event]:
        response, timings = self.response, reply.completion.timings
        is_cut = reply.completion.finish_reason == "length"
        if not is_cut and all(isinstance(item, ReasoningItem) for item in response.output):
            yield from self._reopened(OutputMessage)  # an empty answer
        response.status = "incomplete" if is_cut else "completed"
        yield from self._close(response.status)
        response.usage = ResponseUsage(
            input_tokens=timings.prompt_tokens,
            input_tokens_details=CachedTokens(cached_tokens=timings.cached_tokens),
            output_tokens=timings.new_tokens,
            output_tokens_details=ReasoningTokens(reasoning_tokens=self._reasoning_tokens),
            total_tokens=timings.prompt_tokens + timings.new_tokens,
        )
        if is_cut:
            response.incomplete_details = IncompleteDetails()
        else:
            response.completed_at = int(time.time())
        self._at_end(response)
        yield self._event(response.status, response=response)

    def _reopened(self, kind: type[OutputMessage | ReasoningItem]) -> Iterator[Event]:
        """Close the open item and begin one of a kind, unless it is of that kind."""
        if isinstance(self._open, kind):
            return
        yield from self._close("completed")
        is_message = kind is OutputMessage
        part = OutputText() if is_message else ReasoningText()
        self._open = kind(id=new_id("msg_" if is_message else "rs_"))
        self._texts, self._logprobs = [], []
        self.response.output.append(self._open)
        yield self._item_event("added")
        self._open.content.append(part)  # type: ignore[arg-type]  # of the same kind
        yield self._part_event("content_part.added", part=part)

    def _close(self, status: Status) -> Iterator[Event]:
        """End the open item, if any."""
        if self._open is None:
            return
        (part,) = self._open.content
        part.text = "".join(self._texts)
        if isinstance(part, OutputText):
            part.logprobs = self._logprobs
            yield self._part_event("output_text.done", text=part.text, logprobs=part.logprobs)
        else:
            yield self._part_event("reasoning.done", text=part.text)
        yield self._part_event("content_part.done", part=part)
        self._open.status = status
        yield self._item_event("done")
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item = FunctionCall(id=new_id("fc_"), call_id=call.id, name=call.name)
        self.response.output.append(item)
        yield self._item_event("added")
        item.arguments = json.dumps(call.arguments, ensure_ascii=False)
        place = {"item_id": item.id, "output_index": len(self.response.output) - 1}
        yield self._event("function_call_arguments.delta", delta=item.arguments, **place)
        done = {"name": item.name, "arguments": item.arguments}
        yield self._event("function_call_arguments.done", **done, **place)
        item.status = "completed"
        yield self._item_event("done")

    def _item_event(self, change: str) -> Event:
        """An event of the newest item."""
        output = self.response.output
        return self._event(f"output_item.{change}", output_index=len(output) - 1, item=output[-1])

    def _part_event(self, change: str, **fields: Any) -> Event:
        """An event of the newest item, which has a single part."""
        output = self.response.output
        place = {"item_id": output[-1].id, "output_index": len(output) - 1, "content_index": 0}
        return self._event(change, **place, **fields)

    def _event(self, change: str, **fields: Any) -> Event:
        self._count += 1
        return Event(type=f"response.{change}", sequence_number=self._count - 1, **fields)

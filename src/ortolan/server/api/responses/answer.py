"""Turns the pieces of a reply into output items and events."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ortolan.runtime import Piece, Reply, Ticket, Tokenizer, ToolCall
from ortolan.server.api.bodies import new_id
from ortolan.server.api.logprobs import TokenLogprob, logprobs_of
from ortolan.server.api.replies import SingleCall, whole_reply
from ortolan.server.api.responses.resource import (
    ArgumentsEvent,
    DeltaEvent,
    ErrorEvent,
    FunctionCall,
    IncompleteDetails,
    ItemEvent,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    Status,
    TextEvent,
    usage_of,
)
from ortolan.server.errors import ApiError, error_body

Event = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | TextEvent | ArgumentsEvent | ErrorEvent
"""An event of a stream."""


class Answer:
    """A response while it is generated.

    Events hold the response and its items themselves, so encode each before you ask for the next.

    Attributes:
        response: what has been generated so far.
    """

    def __init__(self, response: Response, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self.response = response
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._count = 0
        self._open: OutputMessage | ReasoningItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._reasoning_tokens = 0

    async def events(self, source: Ticket[Reply] | SingleCall) -> AsyncIterator[Event]:
        """Yield all events of a reply; raises what `Ticket.result` does."""
        yield self._event(ResponseEvent, "created", response=self.response)
        yield self._event(ResponseEvent, "in_progress", response=self.response)
        async for piece in source:
            for event in self._piece(piece):
                yield event
        for event in self._finished(await whole_reply(source)):
            yield event

    def failed(self, error: ApiError) -> Iterator[Event]:
        """Yield the last events of a response that failed."""
        self.response.status = "failed"
        self.response.error = ResponseError(code=error.code or error.type, message=error.message)
        self._count += 1
        yield ErrorEvent(
            type="error", sequence_number=self._count - 1, error=error_body(error).error
        )
        yield self._event(ResponseEvent, "failed", response=self.response)

    def _piece(self, piece: Piece) -> Iterator[Event]:
        if piece.tool_call is not None:
            yield from self._close("completed")
            yield from self._call(piece.tool_call)
        elif piece.reasoning:
            self._reasoning_tokens += len(piece.tokens)
            yield from self._text(ReasoningItem, piece.reasoning)
        elif piece.content:
            entries = piece.logprobs if self._with_logprobs else None
            logprobs = logprobs_of(entries, self._tokenizer)
            yield from self._text(
                OutputMessage, piece.content, [] if logprobs is None else logprobs.content
            )

    def _finished(self, reply: Reply) -> Iterator[Event]:
        response, completion = self.response, reply.completion
        is_cut = completion.finish_reason == "length"
        if not is_cut and not any(not isinstance(i, ReasoningItem) for i in response.output):
            yield from self._text(OutputMessage, "")  # an empty answer
        response.status = "incomplete" if is_cut else "completed"
        yield from self._close(response.status)
        response.usage = usage_of(completion, reasoning_tokens=self._reasoning_tokens)
        if is_cut:
            response.incomplete_details = IncompleteDetails()
        else:
            response.completed_at = int(time.time())
        yield self._event(ResponseEvent, response.status, response=response)

    def _text(
        self,
        kind: type[OutputMessage | ReasoningItem],
        text: str,
        logprobs: list[TokenLogprob] | None = None,
    ) -> Iterator[Event]:
        """Add text to an item of a kind, which is opened if necessary."""
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            yield from self._begin(kind)
        if not text:
            return
        self._texts.append(text)
        self._logprobs += logprobs or ()
        if kind is OutputMessage:
            more = {"logprobs": logprobs or []}
            yield self._part_event(DeltaEvent, "output_text.delta", delta=text, **more)
        else:
            yield self._part_event(DeltaEvent, "reasoning.delta", delta=text)

    def _begin(self, kind: type[OutputMessage | ReasoningItem]) -> Iterator[Event]:
        item: OutputMessage | ReasoningItem
        part: OutputText | ReasoningText
        if kind is OutputMessage:
            item, part = OutputMessage(id=new_id("msg_")), OutputText()
        else:
            item, part = ReasoningItem(id=new_id("rs_")), ReasoningText()
        self._open, self._texts, self._logprobs = item, [], []
        self.response.output.append(item)
        yield self._item_event("added")
        item.content.append(part)  # type: ignore[arg-type]  # of the same kind
        yield self._part_event(PartEvent, "content_part.added", part=part)

    def _close(self, status: Status) -> Iterator[Event]:
        """End the open item, if any."""
        if self._open is None:
            return
        (part,) = self._open.content
        part.text = "".join(self._texts)
        if isinstance(part, OutputText):
            part.logprobs = self._logprobs
            more = {"logprobs": part.logprobs}
            yield self._part_event(TextEvent, "output_text.done", text=part.text, **more)
        else:
            yield self._part_event(TextEvent, "reasoning.done", text=part.text)
        yield self._part_event(PartEvent, "content_part.done", part=part)
        self._open.status = status
        yield self._item_event("done")
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item = FunctionCall(id=new_id("fc_"), call_id=call.id, name=call.name)
        self.response.output.append(item)
        yield self._item_event("added")
        item.arguments = json.dumps(call.arguments, ensure_ascii=False)
        place = {"item_id": item.id, "output_index": len(self.response.output) - 1}
        yield self._event(
            DeltaEvent, "function_call_arguments.delta", delta=item.arguments, **place
        )
        yield self._event(
            ArgumentsEvent,
            "function_call_arguments.done",
            name=item.name,
            arguments=item.arguments,
            **place,
        )
        item.status = "completed"
        yield self._item_event("done")

    def _item_event(self, change: str) -> Any:
        index = len(self.response.output) - 1
        item = self.response.output[index]
        return self._event(ItemEvent, f"output_item.{change}", output_index=index, item=item)

    def _part_event(self, event: type[Any], change: str, **fields: Any) -> Any:
        """An event of the newest item, which has a single part."""
        index = len(self.response.output) - 1
        item_id = self.response.output[index].id
        return self._event(
            event, change, item_id=item_id, output_index=index, content_index=0, **fields
        )

    def _event(self, event: type[Any], change: str, /, **fields: Any) -> Any:
        self._count += 1
        return event(type=f"response.{change}", sequence_number=self._count - 1, **fields)

"""The response, the events of a stream, and how they come from the pieces of a reply."""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import msgspec

from ortolan.runtime import Piece, Reply, Tokenizer, ToolCall
from ortolan.runtime.generation.completion import Timings
from ortolan.server.api.bodies import ToolChoice
from ortolan.server.api.choices import PromptTokensDetails, new_id
from ortolan.server.api.logprobs import TokenLogprob, logprobs_of
from ortolan.server.api.replies import ReplyPieces
from ortolan.server.api.responses.body import ReasoningSettings, Tool
from ortolan.server.api.responses.items import Item, Part
from ortolan.server.errors import ApiError, Error, error_body

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningTokens(msgspec.Struct, kw_only=True):
    """Parts of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, kw_only=True):
    """A response, with the settings of its request."""

    id: str
    created_at: int
    model: str
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: dict[str, Any]
    reasoning: ReasoningSettings
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] = []
    tool_choice: str | ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool = False
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    object: Literal["response"] = "response"
    status: Status = "in_progress"
    completed_at: int | None = None
    error: Error | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[Item] = []
    usage: ResponseUsage | None = None
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event of a stream. The others but the first two fields depend on its type."""

    type: str
    sequence_number: int
    response: Response | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    item: Item | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    part: Part | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


class Answer:
    """A response while it is generated.

    Events hold the response and its items themselves, so encode each before you ask for the next.

    Attributes:
        response: what has been generated so far.
        at_end: called when the response is complete, before its last event.
    """

    def __init__(
        self, response: Response, tokenizer: Tokenizer, *, at_end: Callable[[Timings], None]
    ) -> None:
        self.response = response
        self._tokenizer = tokenizer
        self._at_end = at_end
        self._count = 0
        self._open: tuple[Item, Part] | None = None
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
        self.response.status, self.response.error = "failed", error_body(error).error
        yield Event(type="error", sequence_number=self._count, error=self.response.error)
        self._count += 1
        yield self._event("failed", response=self.response)

    def _piece(self, piece: Piece) -> Iterator[Event]:
        if piece.tool_call is not None:
            yield from self._close("completed")
            yield from self._call(piece.tool_call)
        elif piece.reasoning:
            self._reasoning_tokens += len(piece.tokens)
            yield from self._reopened("reasoning")
            self._texts.append(piece.reasoning)
            yield self._part_event("reasoning.delta", delta=piece.reasoning)
        elif piece.content:
            yield from self._reopened("message")
            self._texts.append(piece.content)
            scored = logprobs_of(piece.logprobs, self._tokenizer)
            logprobs = [] if scored is None else scored.content
            self._logprobs += logprobs
            yield self._part_event("output_text.delta", delta=piece.content, logprobs=logprobs)

    def _finished(self, reply: Reply) -> Iterator[Event]:
        response, timings = self.response, reply.completion.timings
        is_cut = reply.completion.finish_reason == "length"
        if not is_cut and all(item.type == "reasoning" for item in response.output):
            yield from self._reopened("message")  # an empty answer
        response.status = "incomplete" if is_cut else "completed"
        yield from self._close(response.status)
        response.usage = ResponseUsage(
            input_tokens=timings.prompt_tokens,
            input_tokens_details=PromptTokensDetails(cached_tokens=timings.cached_tokens),
            output_tokens=timings.new_tokens,
            output_tokens_details=ReasoningTokens(reasoning_tokens=self._reasoning_tokens),
            total_tokens=timings.prompt_tokens + timings.new_tokens,
        )
        if is_cut:
            response.incomplete_details = IncompleteDetails()
        else:
            response.completed_at = int(time.time())
        self._at_end(timings)
        yield self._event(response.status, response=response)

    def _reopened(self, kind: Literal["message", "reasoning"]) -> Iterator[Event]:
        """Close the open item and begin one of a type, unless it is of that type."""
        if self._open is not None and self._open[0].type == kind:
            return
        yield from self._close("completed")
        self._texts, self._logprobs = [], []
        if kind == "message":
            item = Item(id=new_id("msg_"), role="assistant", content=[], status="in_progress")
            part = Part(type="output_text", text="", annotations=[], logprobs=[])
        else:
            item = Item(id=new_id("rs_"), type=kind, summary=[], content=[], status="in_progress")
            part = Part(type="reasoning_text", text="")
        yield self._added(item)
        self._open, item.content = (item, part), [part]
        yield self._part_event("content_part.added", part=part)

    def _close(self, status: Status) -> Iterator[Event]:
        """End the open item, if any."""
        if self._open is None:
            return
        (item, part), self._open = self._open, None
        part.text = "".join(self._texts)
        if item.type == "message":
            part.logprobs = self._logprobs
            yield self._part_event("output_text.done", text=part.text, logprobs=part.logprobs)
        else:
            yield self._part_event("reasoning.done", text=part.text)
        yield self._part_event("content_part.done", part=part)
        yield self._done(status)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item = Item(
            id=new_id("fc_"),
            type="function_call",
            call_id=call.id,
            name=call.name,
            arguments="",
            status="in_progress",
        )
        yield self._added(item)
        item.arguments = json.dumps(call.arguments, ensure_ascii=False)
        yield self._newest("function_call_arguments.delta", delta=item.arguments)
        done = {"name": item.name, "arguments": item.arguments}
        yield self._newest("function_call_arguments.done", **done)
        yield self._done("completed")

    def _added(self, item: Item) -> Event:
        self.response.output.append(item)
        return self._item_event("output_item.added")

    def _done(self, status: Status) -> Event:
        self.response.output[-1].status = status
        return self._item_event("output_item.done")

    def _item_event(self, change: str) -> Event:
        """An event of the newest item."""
        output = self.response.output
        return self._event(change, output_index=len(output) - 1, item=output[-1])

    def _part_event(self, change: str, **fields: Any) -> Event:
        """An event of the part of the newest item."""
        return self._newest(change, content_index=0, **fields)

    def _newest(self, change: str, **fields: Any) -> Event:
        """An event inside of the newest item."""
        output = self.response.output
        return self._event(change, item_id=output[-1].id, output_index=len(output) - 1, **fields)

    def _event(self, change: str, **fields: Any) -> Event:
        self._count += 1
        return Event(type=f"response.{change}", sequence_number=self._count - 1, **fields)

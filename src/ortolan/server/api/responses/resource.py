"""The response, its output items, and the events of a stream."""

from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion
from ortolan.server.api.logprobs import TokenLogprob
from ortolan.server.errors import Error

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the answer; `logprobs` is empty unless the request includes them."""

    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Text of the reasoning."""

    text: str = ""


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """The answer, or a part of it between calls."""

    id: str
    status: Status = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = msgspec.field(default_factory=list)


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning before the answer."""

    id: str
    status: Status = "in_progress"
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText] = msgspec.field(default_factory=list)


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A tool call; answer it with an item `function_call_output` of the same `call_id`."""

    id: str
    call_id: str
    name: str
    status: Status = "in_progress"
    arguments: str = ""


class CachedTokens(msgspec.Struct, kw_only=True):
    """Parts of the input tokens."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct, kw_only=True):
    """Parts of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


def usage_of(completion: Completion, *, reasoning_tokens: int = 0) -> ResponseUsage:
    """Counts of a completion."""
    timings = completion.timings
    return ResponseUsage(
        input_tokens=timings.prompt_tokens,
        input_tokens_details=CachedTokens(cached_tokens=timings.cached_tokens),
        output_tokens=timings.new_tokens,
        output_tokens_details=ReasoningTokens(reasoning_tokens=reasoning_tokens),
        total_tokens=timings.prompt_tokens + timings.new_tokens,
    )


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, kw_only=True):
    """A response, with the settings of its request."""

    id: str
    created_at: int
    model: str
    instructions: str | None
    previous_response_id: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    object: Literal["response"] = "response"
    status: Status = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputMessage | ReasoningItem | FunctionCall] = msgspec.field(default_factory=list)
    usage: ResponseUsage | None = None
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"


class _Event(msgspec.Struct, kw_only=True):
    type: str
    sequence_number: int


class ResponseEvent(_Event, kw_only=True):
    """The response changed its status."""

    response: Response


class ItemEvent(_Event, kw_only=True):
    """An output item was added or is done."""

    output_index: int
    item: OutputMessage | ReasoningItem | FunctionCall


class _ItemPartEvent(_Event, kw_only=True):
    item_id: str
    output_index: int


class PartEvent(_ItemPartEvent, kw_only=True):
    """A part of an item was added or is done."""

    part: OutputText | ReasoningText
    content_index: int = 0


class DeltaEvent(_ItemPartEvent, kw_only=True):
    """Text or arguments were added."""

    delta: str
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class TextEvent(_ItemPartEvent, kw_only=True):
    """Text is done."""

    text: str
    content_index: int = 0
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class ArgumentsEvent(_ItemPartEvent, kw_only=True):
    """The arguments of a call are done."""

    name: str
    arguments: str


class ErrorEvent(_Event, kw_only=True):
    """The response failed."""

    error: Error

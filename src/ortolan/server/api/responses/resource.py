"""The response, and the events of a stream."""

from typing import Any, Literal

import msgspec

from ortolan.server.api.logprobs import TokenLogprob
from ortolan.server.api.responses.body import ReasoningSettings, Tool
from ortolan.server.api.responses.items import Item, Part
from ortolan.server.errors import Error

Status = Literal["in_progress", "completed", "incomplete", "failed"]


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
    tool_choice: str | dict[str, Any] = "auto"
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
    error: ResponseError | None = None
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

"""The body of a request for a response, and the chat that it becomes."""

from typing import Any, Literal

import msgspec

from ortolan.server.api.bodies import JsonSchema, Limit, SamplingFields, StreamOptions, ToolChoice
from ortolan.server.api.responses.items import Item
from ortolan.server.errors import ApiError

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""


class TextFormat(JsonSchema, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"

    def __post_init__(self) -> None:
        if self.type == "json_schema" and (self.schema is None or self.name is None):
            raise ValueError("json_schema needs name and schema")

    @property
    def of_grammar(self) -> dict[str, Any] | None:
        """The schema that forms the answer."""
        return {"text": None, "json_object": {"type": "object"}}.get(self.type, self.schema)


class TextSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of the reasoning. There are no summaries: the reasoning itself is returned."""

    effort: str | None = None
    summary: Literal["auto"] | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        given = {name: value for name, value in fields.items() if value is not None}
        return {"type": "function", "function": given}


class ResponseBody(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a request for a response.

    Attributes:
        include: `message.output_text.logprobs` adds log-probabilities. Reasoning is returned as
            text, so nothing needs `reasoning.encrypted_content`.
        max_tool_calls: limits hosted tools, of which there are none.
        store: keep the response in memory, for `previous_response_id`.
    """

    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: Limit | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    store: bool | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.top_logprobs and not self.has_logprobs:
            raise ApiError(f'top_logprobs needs include=["{LOGPROBS}"].', param="top_logprobs")

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer includes log-probabilities."""
        return LOGPROBS in (self.include or ())

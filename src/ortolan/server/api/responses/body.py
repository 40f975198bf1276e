"""The body of a request for a response, and the settings that it becomes."""

from typing import Any, Literal

import msgspec

from ortolan.server.api.bodies import (
    JsonSchema,
    ResponseFormat,
    SamplingFields,
    StreamOptions,
    allowed_tools,
    checked_limit,
    grammar_of,
    options_of,
)
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


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


class ResponseBody(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a request for a response.

    Attributes:
        include: `message.output_text.logprobs` adds log-probabilities. Reasoning is returned as
            text, so nothing needs `reasoning.encrypted_content`.
        max_tool_calls: limits hosted tools, of which there are none.
        store: keep the response in memory, for `previous_response_id`.
    """

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: int | None = None
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


def read_tools(body: ResponseBody) -> list[Tool]:
    """Read the tools."""
    tools = []
    for number, tool in enumerate(body.tools or ()):
        place = f"tools[{number}]"
        kind = tool.get("type")
        if kind != "function":
            raise ApiError(
                f"{place}: the server hosts no tools (got the type {str(kind)[:40]!r}). "
                'Define a tool of the type "function".',
                code="tool-type",
                param=f"{place}.type",
            )
        tools.append(convert(tool, Tool, place))
    return tools


async def chat_options(
    body: ResponseBody, served: ServedModel, tools: list[Tool]
) -> dict[str, Any]:
    """Options of the chat request."""
    offered, choice = _choice(body.tool_choice, tools)
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning.effort)
    if body.text is not None and body.text.verbosity is not None:
        variables.setdefault("verbosity", body.text.verbosity)
    return {
        **options_of(body, served.model.recommended_sampling),
        "max_new_tokens": checked_limit("max_output_tokens", body.max_output_tokens),
        "tools": [_function(tool) for tool in offered] or None,
        "tool_choice": choice if offered or choice != "none" else None,
        "grammar": await _grammar(body.text),
        "logprobs": _logprobs(body),
        "variables": variables or None,
    }


def convert(data: Any, kind: Any, place: str) -> Any:
    """Decode a part of the body."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{message} - at `$.{place}{inner.rstrip('`')}`") from error


def _choice(
    choice: str | dict[str, Any] | None, tools: list[Tool]
) -> tuple[list[Tool], str | dict[str, Any] | None]:
    """The tools to offer, and the choice among them in the form of chat completions."""
    if not isinstance(choice, dict):
        return tools, choice
    kind = choice.get("type")
    if kind == "function":
        return tools, {"type": "function", "function": {"name": choice.get("name")}}
    if kind != "allowed_tools":
        raise ApiError(
            f'tool_choice.type must be "function" or "allowed_tools" (got {str(kind)[:40]!r}).',
            param="tool_choice.type",
        )
    names, mode = allowed_tools(choice, [tool.name for tool in tools])
    return [tool for tool in tools if tool.name in names], mode


def _function(tool: Tool) -> dict[str, Any]:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    function = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": function}


async def _grammar(text: TextSettings | None) -> Any:
    if text is None or text.format is None:
        return None
    form = text.format
    if form.type == "json_schema" and (form.schema is None or form.name is None):
        missing = "schema" if form.schema is None else "name"
        raise ApiError(f"text.format.{missing} is missing.", param=f"text.format.{missing}")
    schema = JsonSchema(name=form.name or "", schema=form.schema)
    return await grammar_of(ResponseFormat(type=form.type, json_schema=schema))


def _logprobs(body: ResponseBody) -> int | None:
    if LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(f'top_logprobs needs include=["{LOGPROBS}"].', param="top_logprobs")
    return None

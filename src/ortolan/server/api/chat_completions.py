"""`/v1/chat/completions`.

Source: https://platform.openai.com/docs/api-reference/chat
"""

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion, Piece, Reply, Ticket, ToolCall
from ortolan.server.api.bodies import (
    ChoicesFields,
    ResponseFormat,
    allowed_tools,
    checked_limit,
    grammar_of,
    new_id,
    options_of,
)
from ortolan.server.api.logprobs import ChoiceLogprobs, logprobs_of
from ortolan.server.api.merge import merged
from ortolan.server.api.replies import SingleCall, submit_chat, whole_reply
from ortolan.server.api.usage import Usage, note, usage_of, usage_so_far
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.events import EventStream, event
from ortolan.server.models import ServedModel


class ChatBody(ChoicesFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a chat completion.

    Attributes:
        chat_template_kwargs: variables of the chat template, such as `enable_thinking`.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    store: Literal[False] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: tuple[Literal["text"]] | None = None
    add_generation_prompt: Literal[True] | None = None
    add_special_tokens: Literal[False] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    continue_final_message: bool | None = None
    include_reasoning: Literal[True] | None = None
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: Literal[True] | None = None


class Function(msgspec.Struct, kw_only=True):
    """Name and arguments of a call, the latter as JSON."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class MessageCall(msgspec.Struct, kw_only=True):
    """A tool call; in a stream, `index` tells which one."""

    function: Function
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct, kw_only=True):
    """The answer of the model."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[MessageCall] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, kw_only=True):
    """Addition of a chunk to the message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[MessageCall] | msgspec.UnsetType = msgspec.UNSET


Finish = Literal["stop", "length", "tool_calls"]


class Choice(msgspec.Struct, kw_only=True):
    """One of `n` answers."""

    index: int
    message: Message
    finish_reason: Finish
    logprobs: ChoiceLogprobs | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """Part of one of `n` answers."""

    index: int
    delta: Delta
    finish_reason: Finish | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A complete answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a streamed answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


async def create(call: Call, body: ChatBody) -> ChatCompletion | EventStream[ChatChunk]:
    """Answer a conversation."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    options = await _options(body, served)
    count = 1 if body.n is None else body.n
    tickets = await submit_chat(call, served, body.messages, options, n=count)
    sources: Sequence[Ticket[Reply] | SingleCall] = tickets
    if body.parallel_tool_calls is False:
        sources = [SingleCall(ticket) for ticket in tickets]
    if body.stream:
        if body.logprobs:
            tickets = [ticket.pieces() for ticket in tickets]
        return EventStream(_events(call, tickets, sources, served, body))
    replies = [await whole_reply(source) for source in sources]
    usage = usage_of(reply.completion for reply in replies)
    note(call, usage)
    return ChatCompletion(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=served.name,
        choices=[_choice(n, reply, served) for n, reply in enumerate(replies)],
        usage=usage,
        system_fingerprint=served.fingerprint,
    )


async def _options(body: ChatBody, served: ServedModel) -> dict[str, Any]:
    options = options_of(body, served.model.recommended_sampling, choices=body.n)
    limit = checked_limit("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        limit = checked_limit("max_completion_tokens", body.max_completion_tokens)
    variables = dict(body.chat_template_kwargs or {})
    for name in ("reasoning_effort", "verbosity"):
        if (value := getattr(body, name)) is not None:
            variables.setdefault(name, value)
    tools, choice = _tools(body)
    return {
        **options,
        "max_new_tokens": limit,
        "tools": tools or None,
        "tool_choice": choice if tools or choice != "none" else None,
        "grammar": await grammar_of(body.response_format, body.structured_outputs),
        "logprobs": _top(body),
        "variables": variables or None,
        "documents": body.documents,
        "continue_final_message": bool(body.continue_final_message),
    }


def _tools(body: ChatBody) -> tuple[list[dict[str, Any]], str | dict[str, Any] | None]:
    """The tools to offer, and the choice among them."""
    tools, choice = body.tools or [], body.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    named = [(tool.get("function"), tool) for tool in tools]
    by_name = {f["name"]: tool for f, tool in named if isinstance(f, dict) and "name" in f}
    names, mode = allowed_tools(choice, by_name)
    return [tool for name, tool in by_name.items() if name in names], mode


def _top(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise ApiError("top_logprobs needs logprobs=true.", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _choice(index: int, reply: Reply, served: ServedModel) -> Choice:
    calls = [_call(call) for call in reply.tool_calls]
    return Choice(
        index=index,
        message=Message(
            content=None if calls and not reply.content else reply.content,
            reasoning_content=reply.reasoning or msgspec.UNSET,
            tool_calls=calls or msgspec.UNSET,
        ),
        finish_reason=_finish(reply.completion, has_calls=bool(calls)),
        logprobs=logprobs_of(reply.completion.logprobs, served.model.tokenizer),
    )


def _call(call: ToolCall, index: int | msgspec.UnsetType = msgspec.UNSET) -> MessageCall:
    return MessageCall(
        id=call.id,
        type="function",
        function=Function(name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)),
        index=index,
    )


def _finish(completion: Completion, *, has_calls: bool) -> Finish:
    if completion.finish_reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"


async def _events(
    call: Call,
    tickets: Sequence[Ticket[Reply]],
    sources: Sequence[Ticket[Reply] | SingleCall],
    served: ServedModel,
    body: ChatBody,
) -> AsyncIterator[bytes]:
    """Chunks of all choices, as they come."""
    chunk = ChatChunk(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=served.name,
        choices=[],
        system_fingerprint=served.fingerprint,
        usage=None if body.streams_usage else msgspec.UNSET,
    )

    def encoded(index: int, delta: Delta, finish: Finish | None = None, **rest: Any) -> bytes:
        chunk.choices = [ChunkChoice(index=index, delta=delta, finish_reason=finish, **rest)]
        if body.streams_counts:
            chunk.usage = usage_so_far(tickets, 1)
        return event(chunk)

    tokenizer = served.model.tokenizer
    calls = [0] * len(sources)
    rest: list[ChoiceLogprobs | None] = [None] * len(sources)
    for index in range(len(sources)):
        yield encoded(index, Delta(role="assistant", content=""))
    async for index, piece in merged(sources):
        logprobs = logprobs_of(piece.logprobs or None, tokenizer)
        deltas = _deltas(piece, calls[index])
        if not deltas:  # tokens without text, such as EOS
            rest[index] = logprobs
        for delta in deltas:
            yield encoded(index, delta, logprobs=logprobs)
            logprobs = None
        calls[index] += piece.tool_call is not None
    replies = [await whole_reply(source) for source in sources]
    for index, reply in enumerate(replies):
        finish = _finish(reply.completion, has_calls=bool(reply.tool_calls))
        yield encoded(index, Delta(), finish, logprobs=rest[index])
    usage = usage_of(reply.completion for reply in replies)
    note(call, usage)
    if body.streams_usage:
        chunk.choices, chunk.usage = [], usage
        yield event(chunk)


def _deltas(piece: Piece, index: int) -> list[Delta]:
    """Turn a piece into deltas, for a message that already has `index` calls."""
    if piece.tool_call is not None:
        return _call_deltas(piece.tool_call, index)
    if piece.reasoning:
        return [Delta(reasoning_content=piece.reasoning)]
    return [Delta(content=piece.content)] if piece.content else []


def _call_deltas(call: ToolCall, index: int) -> list[Delta]:
    """A call in two parts: id and name, then its arguments."""
    whole = _call(call, index)
    name = msgspec.structs.replace(
        whole, function=msgspec.structs.replace(whole.function, arguments="")
    )
    arguments = MessageCall(index=index, function=Function(arguments=whole.function.arguments))
    return [Delta(tool_calls=[name]), Delta(tool_calls=[arguments])]

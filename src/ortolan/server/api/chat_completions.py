"""`/v1/chat/completions`.

Source: https://platform.openai.com/docs/api-reference/chat
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion, Piece, Reply, Tokenizer, ToolCall
from ortolan.server.api.bodies import ChoicesFields, Limit, ResponseFormat, ToolChoice
from ortolan.server.api.choices import ChoicesAnswer, answer
from ortolan.server.api.logprobs import ChoiceLogprobs, logprobs_of
from ortolan.server.api.options import grammar_of
from ortolan.server.api.replies import ReplyPieces, submit_chat
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.events import EventStream


class ChatBody(ChoicesFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a chat completion.

    Attributes:
        chat_template_kwargs: variables of the chat template, such as `enable_thinking`.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    store: Literal[False] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: tuple[Literal["text"]] | None = None
    add_special_tokens: Literal[False] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    continue_final_message: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs=true.", param="top_logprobs")
        if self.structured_outputs and self.response_format and self.response_format.schema:
            raise ApiError(
                "Send either structured_outputs or response_format.", param="structured_outputs"
            )


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
    """The answer of the model, or what a chunk adds to it."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[MessageCall] | msgspec.UnsetType = msgspec.UNSET


Finish = Literal["stop", "length", "tool_calls"]


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of `n` answers."""

    index: int
    message: Message
    finish_reason: Finish
    logprobs: ChoiceLogprobs | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """Part of one of `n` answers."""

    index: int
    delta: Message
    finish_reason: Finish | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(ChoicesAnswer, kw_only=True):
    """A complete answer."""

    choices: list[ChatChoice]
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(ChoicesAnswer, kw_only=True):
    """An event of a streamed answer."""

    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


async def create(call: Call, body: ChatBody) -> ChatCompletion | EventStream[ChatChunk]:
    """Answer a conversation."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    form, limit = body.response_format, body.max_completion_tokens
    tickets = await submit_chat(
        call,
        served,
        body,
        body.messages,
        limit=body.max_tokens if limit is None else limit,
        tools=body.tools or [],
        choice=body.tool_choice,
        variables={
            "reasoning_effort": body.reasoning_effort,
            "verbosity": body.verbosity,
            **(body.chat_template_kwargs or {}),
        },
        n=1 if body.n is None else body.n,
        grammar=await grammar_of(form.schema if form else None, body.structured_outputs),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        documents=body.documents,
        continue_final_message=bool(body.continue_final_message),
    )
    is_single = body.parallel_tool_calls is False
    readers = [
        _Reader(
            index,
            ReplyPieces(ticket, ends_with_call=is_single, joined=not body.logprobs),
            served.model.tokenizer,
        )
        for index, ticket in enumerate(tickets)
    ]
    return await answer(
        call, served, body, readers, whole=ChatCompletion, chunk=ChatChunk, prefix="chatcmpl-"
    )


class _Reader:
    """Reads one of `n` answers."""

    completion: Completion

    def __init__(self, index: int, pieces: ReplyPieces, tokenizer: Tokenizer) -> None:
        self._index = index
        self._pieces = pieces
        self._tokenizer = tokenizer
        self.ticket = pieces.ticket

    async def parts(self) -> AsyncIterator[ChunkChoice]:
        """Yield the choices of the chunks."""
        yield self._part(Message(role="assistant", content=""))
        calls, unsent = 0, None
        async for piece in self._pieces:
            logprobs = logprobs_of(piece.logprobs or None, self._tokenizer)
            deltas = _deltas(piece, calls)
            if not deltas:  # tokens without text, such as EOS
                unsent = logprobs
            for delta in deltas:
                yield self._part(delta, logprobs)
                logprobs = None
            calls += piece.tool_call is not None
        reply = await self._reply()
        yield self._part(Message(), unsent, _finish(reply))

    async def whole(self) -> ChatChoice:
        """Wait for the choice of the answer."""
        reply = await self._reply()
        calls = [_call(call) for call in reply.tool_calls]
        return ChatChoice(
            index=self._index,
            message=Message(
                role="assistant",
                refusal=None,
                content=None if calls and not reply.content else reply.content,
                reasoning_content=reply.reasoning or msgspec.UNSET,
                tool_calls=calls or msgspec.UNSET,
            ),
            finish_reason=_finish(reply),
            logprobs=logprobs_of(reply.completion.logprobs, self._tokenizer),
        )

    def _part(
        self, delta: Message, logprobs: ChoiceLogprobs | None = None, finish: Finish | None = None
    ) -> ChunkChoice:
        return ChunkChoice(index=self._index, delta=delta, finish_reason=finish, logprobs=logprobs)

    async def _reply(self) -> Reply:
        reply = await self._pieces.reply()
        self.completion = reply.completion
        return reply


def _call(call: ToolCall) -> MessageCall:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = Function(name=call.name, arguments=arguments)
    return MessageCall(id=call.id, type="function", function=function)


def _finish(reply: Reply) -> Finish:
    if reply.completion.finish_reason == "length":
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _deltas(piece: Piece, index: int) -> list[Message]:
    """Turn a piece into deltas, for a message that already has `index` calls."""
    if piece.tool_call is not None:  # first its id and name, then its arguments
        call = _call(piece.tool_call)
        arguments = MessageCall(index=index, function=Function(arguments=call.function.arguments))
        call.index, call.function.arguments = index, ""
        return [Message(tool_calls=[call]), Message(tool_calls=[arguments])]
    if piece.reasoning:
        return [Message(reasoning_content=piece.reasoning)]
    return [Message(content=piece.content)] if piece.content else []

"""The handlers: create, return and delete responses."""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from ortolan.runtime import ChatTicket, Sampling
from ortolan.server.api.bodies import new_id
from ortolan.server.api.replies import ReplyReader
from ortolan.server.api.responses.answer import Answer
from ortolan.server.api.responses.body import LOGPROBS, ResponseBody, Tool, chat_options, read_tools
from ortolan.server.api.responses.compact import COMPACT
from ortolan.server.api.responses.items import messages_of
from ortolan.server.api.responses.resource import Response, ResponseEvent
from ortolan.server.api.responses.stored import Stored, not_found, read_items
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer as HttpAnswer
from ortolan.server.endpoints import Endpoint, Text
from ortolan.server.errors import api_error
from ortolan.server.events import EventStream, event

__all__ = ["ENDPOINTS"]

log = logging.getLogger("ortolan.server")


class Deleted(msgspec.Struct, kw_only=True):
    """Confirms that a response is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


async def create(call: Call, body: ResponseBody) -> HttpAnswer:
    """Answer a conversation of items."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    items = read_items(body.input, body.previous_response_id, call.store)
    tools = read_tools(body)
    options = chat_options(body, served, tools)
    messages = messages_of(items, instructions=body.instructions)
    tickets: list[ChatTicket] = await call.submit(
        lambda: served.service.chat(messages, n=1, **options)
    )
    reader = ReplyReader(
        tickets[0], with_tokens=True, single_call=body.parallel_tool_calls is False
    )
    answer = Answer(
        _response(body, served.name, tools, options["sampling"]),
        served.model.tokenizer,
        with_logprobs=options["logprobs"] is not None,
    )
    if body.stream:
        return EventStream(_stream(call, body, items, answer, reader))
    async for _ in answer.events(reader):
        pass
    _end(call, body, items, answer.response)
    return answer.response


async def get_response(call: Call, _: None) -> HttpAnswer:
    """Return a stored response."""
    data = call.store.get(call.path["response"])
    if data is None:
        raise not_found(call.path["response"], status=404)
    raw = msgspec.json.decode(data, type=Stored).response
    return Text(text=bytes(raw).decode(), media_type="application/json")


async def delete_response(call: Call, _: None) -> HttpAnswer:
    """Delete a stored response."""
    if not call.store.drop(call.path["response"]):
        raise not_found(call.path["response"], status=404)
    return Deleted(id=call.path["response"])


async def _stream(
    call: Call, body: ResponseBody, items: list[Any], answer: Answer, reader: ReplyReader
) -> AsyncIterator[bytes]:
    try:
        async for each in answer.events(reader):
            if isinstance(each, ResponseEvent) and answer.response.status != "in_progress":
                _end(call, body, items, answer.response)
            yield event(each, name=each.type)
    except Exception as error:
        failure = api_error(error)
        if failure.code == "bug":
            log.exception("bug while answering /v1/responses")
        for each in answer.failed(failure):
            yield event(each, name=each.type)


def _end(call: Call, body: ResponseBody, items: list[Any], response: Response) -> None:
    """Keep a response, if asked to, and note its size."""
    usage = response.usage
    if usage is not None:
        call.notes |= {"prompt_tokens": usage.input_tokens, "new_tokens": usage.output_tokens}
    if body.store:
        kept = [*items, *msgspec.to_builtins(response.output)]
        stored = Stored(items=kept, response=msgspec.Raw(msgspec.json.encode(response)))
        call.store.put(response.id, msgspec.json.encode(stored))


def _response(body: ResponseBody, model: str, tools: list[Tool], sampling: Sampling) -> Response:
    """A response without output, with the settings of its request."""
    text = msgspec.to_builtins(body.text.format) if body.text and body.text.format else {}
    form = {name: value for name, value in text.items() if value is not None}
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice = {"mode": "auto", **choice}
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        model=model,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        tools=[msgspec.to_builtins(tool) for tool in tools],
        tool_choice="auto" if choice is None else choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text={"format": form or {"type": "text"}},
        reasoning={
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else 0,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        store=bool(body.store),
        metadata=body.metadata or {},
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


ENDPOINTS = [
    Endpoint(
        method="POST",
        path="/v1/responses",
        handler=create,
        body=ResponseBody,
        answer=Response,
        event=ResponseEvent,
        summary="Answer a conversation of items.",
    ),
    COMPACT,
    Endpoint(
        method="GET",
        path="/v1/responses/{response}",
        handler=get_response,
        answer=Response,
        summary="Return a stored response.",
    ),
    Endpoint(
        method="DELETE",
        path="/v1/responses/{response}",
        handler=delete_response,
        answer=Deleted,
        summary="Delete a stored response.",
    ),
]

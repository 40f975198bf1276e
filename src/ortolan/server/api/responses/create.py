"""The handlers: create, return and delete responses."""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from ortolan.runtime import Reply, Sampling, Ticket
from ortolan.server.api.bodies import new_id
from ortolan.server.api.replies import SingleCall, submit_chat
from ortolan.server.api.responses.answer import Answer, Event
from ortolan.server.api.responses.body import LOGPROBS, ResponseBody, Tool, chat_options, read_tools
from ortolan.server.api.responses.items import messages_of
from ortolan.server.api.responses.resource import Response, ResponseEvent
from ortolan.server.api.responses.stored import Stored, not_found, read_items
from ortolan.server.call import Call
from ortolan.server.errors import api_error
from ortolan.server.events import EventStream, event

log = logging.getLogger("ortolan.server")


class Deleted(msgspec.Struct, kw_only=True):
    """Confirms that a response is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


async def create(call: Call, body: ResponseBody) -> Response | EventStream[ResponseEvent]:
    """Answer a conversation of items."""
    answer, events = await _start(call, body)
    if body.stream:
        return EventStream(_stream(answer, events))
    async for _ in events:
        pass
    return answer.response


async def _start(call: Call, body: ResponseBody) -> tuple[Answer, AsyncIterator[Event]]:
    """Submit a request, and return its answer with the events that complete it."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    items = read_items(body.input, body.previous_response_id, call.store)
    tools = read_tools(body)
    options = await chat_options(body, served, tools)
    messages = messages_of(items, instructions=body.instructions)
    (ticket,) = await submit_chat(call, served, messages, options)
    answer = Answer(
        _response(body, served.name, tools, options["sampling"]),
        served.model.tokenizer,
        with_logprobs=options["logprobs"] is not None,
    )
    is_single = body.parallel_tool_calls is False
    source = SingleCall(ticket) if is_single else ticket.pieces()
    return answer, _events(call, answer, source, items if body.store else None)


async def _events(
    call: Call, answer: Answer, source: Ticket[Reply] | SingleCall, stored: list[Any] | None
) -> AsyncIterator[Event]:
    """Yield all events; at the end, note the size and keep the response with stored items."""
    response = answer.response
    async for each in answer.events(source):
        if response.usage is not None:
            call.notes["prompt_tokens"] = response.usage.input_tokens
            call.notes["new_tokens"] = response.usage.output_tokens
            if stored is not None:
                kept = [*stored, *msgspec.to_builtins(response.output)]
                entry = Stored(items=kept, response=response)
                call.store.put(response.id, msgspec.json.encode(entry))
        yield each


async def get_response(call: Call) -> Response:
    """Return a stored response."""
    return _stored(call).response


async def list_input_items(call: Call) -> dict[str, Any]:
    """Return the items of a stored response that were its input, the last one first."""
    stored = _stored(call)
    count = len(stored.items) - len(stored.response.output)
    items = [_with_id(item, number) for number, item in enumerate(stored.items[:count])][::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {"object": "list", "data": items, "has_more": False, **ends}


def _stored(call: Call) -> Stored:
    data = call.store.get(call.path["response"])
    if data is None:
        raise not_found(call.path["response"], status=404)
    return msgspec.json.decode(data, type=Stored)


def _with_id(item: dict[str, Any], number: int) -> dict[str, Any]:
    """An item as OpenAI's clients read it back: with a type, an id and parts."""
    kind = item.get("type", "message")
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": part, "text": content}]}
    return {"id": f"{kind}_{number}", "status": "completed", **item, "type": kind}


async def delete_response(call: Call) -> Deleted:
    """Delete a stored response."""
    if not call.store.drop(call.path["response"]):
        raise not_found(call.path["response"], status=404)
    return Deleted(id=call.path["response"])


async def _stream(answer: Answer, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    try:
        async for each in events:
            yield event(each, name=each.type)
    except Exception as error:
        failure = api_error(error)
        if failure.code == "bug":
            log.exception("bug while answering /v1/responses")
        for each in answer.failed(failure):
            yield event(each, name=each.type)


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

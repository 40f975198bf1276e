"""The handlers: create, return and delete responses."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.responses import Response as HttpResponse

from ortolan.runtime import Reply, Sampling, Ticket
from ortolan.server.api.bodies import fitted, new_id
from ortolan.server.api.replies import SingleCall
from ortolan.server.api.responses.answer import Answer, Event
from ortolan.server.api.responses.body import LOGPROBS, ResponseBody, Tool, chat_options, read_tools
from ortolan.server.api.responses.items import messages_of
from ortolan.server.api.responses.resource import Response, ResponseEvent
from ortolan.server.api.responses.stored import Stored, not_found, read_items
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer as HttpAnswer
from ortolan.server.endpoints import Endpoint
from ortolan.server.errors import api_error
from ortolan.server.events import EventStream, event

log = logging.getLogger("ortolan.server")


class Deleted(msgspec.Struct, kw_only=True):
    """Confirms that a response is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A response that is generated for a call.

    Attributes:
        call: that it belongs to.
        body: of the request.
        items: input, with that of previous responses.
        answer: what has been generated so far.
        source: the rest.
    """

    call: Call
    body: ResponseBody
    items: list[Any]
    answer: Answer
    source: Ticket[Reply] | SingleCall

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield all events, and keep the response at the end; raises what `Answer.events` does."""
        async for each in self.answer.events(self.source):
            if isinstance(each, ResponseEvent) and self.answer.response.status != "in_progress":
                self._end()
            yield each

    def _end(self) -> None:
        """Keep the response, if asked to, and note its size."""
        response = self.answer.response
        if response.usage is not None:
            self.call.notes |= {
                "prompt_tokens": response.usage.input_tokens,
                "new_tokens": response.usage.output_tokens,
            }
        if self.body.store:
            kept = [*self.items, *msgspec.to_builtins(response.output)]
            stored = Stored(items=kept, response=msgspec.Raw(msgspec.json.encode(response)))
            self.call.store.put(response.id, msgspec.json.encode(stored))


async def create(call: Call, body: ResponseBody) -> HttpAnswer:
    """Answer a conversation of items."""
    generation = await _start(call, body)
    if body.stream:
        return EventStream(_stream(generation))
    async for _ in generation.events():
        pass
    return generation.answer.response


async def _start(call: Call, body: ResponseBody) -> Generation:
    """Submit a request."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    items = read_items(body.input, body.previous_response_id, call.store)
    tools = read_tools(body)
    options = await chat_options(body, served, tools)
    messages = messages_of(items, instructions=body.instructions)
    limit = options.pop("max_new_tokens")
    tickets: list[Ticket[Reply]] = await call.submit(
        lambda: fitted(
            lambda most: served.service.chat(messages, n=1, max_new_tokens=most, **options), limit
        )
    )
    ticket = tickets[0].pieces()
    answer = Answer(
        _response(body, served.name, tools, options["sampling"]),
        served.model.tokenizer,
        with_logprobs=options["logprobs"] is not None,
    )
    source = SingleCall(ticket) if body.parallel_tool_calls is False else ticket
    return Generation(call=call, body=body, items=items, answer=answer, source=source)


async def get_response(call: Call, _: None) -> HttpAnswer:
    """Return a stored response."""
    data = call.store.get(call.path["response"])
    if data is None:
        raise not_found(call.path["response"], status=404)
    raw = msgspec.json.decode(data, type=Stored).response
    return HttpResponse(bytes(raw), media_type="application/json")


async def list_input_items(call: Call, _: None) -> HttpAnswer:
    """Return the items of a stored response that were its input, the last one first."""
    data = call.store.get(call.path["response"])
    if data is None:
        raise not_found(call.path["response"], status=404)
    stored = msgspec.json.decode(data, type=Stored)
    count = len(stored.items) - len(msgspec.json.decode(stored.response)["output"])
    items = [_with_id(item, number) for number, item in enumerate(stored.items[:count])][::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {"object": "list", "data": items, "has_more": False, **ends}


def _with_id(item: dict[str, Any], number: int) -> dict[str, Any]:
    """An item as OpenAI's clients read it back: with a type, an id and parts."""
    kind = item.get("type", "message")
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": part, "text": content}]}
    return {"id": f"{kind}_{number}", "status": "completed", **item, "type": kind}


async def delete_response(call: Call, _: None) -> HttpAnswer:
    """Delete a stored response."""
    if not call.store.drop(call.path["response"]):
        raise not_found(call.path["response"], status=404)
    return Deleted(id=call.path["response"])


async def _stream(generation: Generation) -> AsyncIterator[bytes]:
    try:
        async for each in generation.events():
            yield event(each, name=each.type)
    except Exception as error:
        failure = api_error(error)
        if failure.code == "bug":
            log.exception("bug while answering /v1/responses")
        for each in generation.answer.failed(failure):
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


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/responses",
        create,
        "Answer a conversation of items.",
        body=ResponseBody,
        answer=Response,
        event=ResponseEvent,
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response}",
        get_response,
        "Return a stored response.",
        answer=Response,
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response}/input_items",
        list_input_items,
        "Return the input of a stored response.",
    ),
    Endpoint(
        "DELETE",
        "/v1/responses/{response}",
        delete_response,
        "Delete a stored response.",
        answer=Deleted,
    ),
]

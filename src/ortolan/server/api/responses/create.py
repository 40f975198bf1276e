"""The handlers: create, return and delete responses."""

import time
from typing import Any, Literal

import msgspec

from ortolan.runtime import Sampling
from ortolan.runtime.generation.completion import Timings
from ortolan.server.api.choices import new_id
from ortolan.server.api.options import grammar_of
from ortolan.server.api.replies import ReplyPieces, submit_chat
from ortolan.server.api.responses.answer import Answer, Event, Response
from ortolan.server.api.responses.body import (
    ReasoningSettings,
    ResponseBody,
    TextFormat,
    TextSettings,
)
from ortolan.server.api.responses.items import Item, Part, messages_of
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.events import DONE, EventStream, event


class Stored(msgspec.Struct, kw_only=True):
    """A response that is kept for `previous_response_id`.

    Attributes:
        items: input and output, which the next response continues.
    """

    items: list[Item]
    response: Response


class Deleted(msgspec.Struct, kw_only=True):
    """Confirms that a response is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


async def create(call: Call, body: ResponseBody) -> Response | EventStream[Event]:
    """Answer a conversation of items."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    items = _items(call, body)
    text, reasoning = body.text or TextSettings(), body.reasoning or ReasoningSettings()
    (ticket,) = await submit_chat(
        call,
        served,
        body,
        messages_of(items, instructions=body.instructions),
        limit=body.max_output_tokens,
        tools=[tool.function for tool in body.tools or ()],
        choice=body.tool_choice,
        variables={
            "reasoning_effort": reasoning.effort,
            "verbosity": text.verbosity,
            **(body.chat_template_kwargs or {}),
        },
        grammar=await grammar_of((text.format or TextFormat()).of_grammar),
        logprobs=(body.top_logprobs or 0) if body.has_logprobs else None,
    )
    pieces = ReplyPieces(ticket, ends_with_call=body.parallel_tool_calls is False, joined=False)

    def finish(timings: Timings) -> None:
        call.note_tokens(timings.prompt_tokens, timings.new_tokens)
        if body.store:
            entry = Stored(items=[*items, *response.output], response=response)
            call.store.put(response.id, msgspec.json.encode(entry))

    response = _response(body, served.name, ticket.work.request.sampling)
    answer = Answer(response, served.model.tokenizer, at_end=finish)
    if body.stream:
        return EventStream(
            (event(each, name=each.type) async for each in answer.events(pieces)),
            lambda error: b"".join(event(e, name=e.type) for e in answer.failed(error)) + DONE,
        )
    async for _ in answer.events(pieces):
        pass
    return response


def _items(call: Call, body: ResponseBody) -> list[Item]:
    """Items of the previous response and of the body."""
    items = body.input or []
    if isinstance(items, str):
        items = [Item(role="user", content=items)]
    if body.previous_response_id is not None:
        previous = _stored(call, body.previous_response_id, field="previous_response_id")
        items = [*previous.items, *items]
    return items


def _response(body: ResponseBody, model: str, sampling: Sampling) -> Response:
    """A response without output, with the settings of its request."""
    form = (body.text and body.text.format) or TextFormat()
    settings = {name: getattr(body, name) for name in _SETTINGS}
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        model=model,
        text={"format": {"type": form.type, **msgspec.to_builtins(form)}},
        reasoning=body.reasoning or ReasoningSettings(),
        top_logprobs=body.top_logprobs or 0,
        **{name: getattr(sampling, name) for name in _SAMPLING},
        **{name: value for name, value in settings.items() if value is not None},
    )


_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")

_SETTINGS = (
    *("instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls"),
    *("store", "metadata", "max_output_tokens", "max_tool_calls", "safety_identifier"),
    "prompt_cache_key",
)
"""Fields of a response that repeat those of the body."""


async def get_response(call: Call) -> Response:
    """Return a stored response."""
    return _stored(call, call.request.path_params["response"]).response


async def list_input_items(call: Call) -> dict[str, Any]:
    """Return the items of a stored response that were its input, the last one first."""
    stored = _stored(call, call.request.path_params["response"])
    own = stored.items[: len(stored.items) - len(stored.response.output)]
    items = [_with_id(item, number) for number, item in enumerate(own)][::-1]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {"object": "list", "data": items, "has_more": False, **ends}


def _with_id(item: Item, number: int) -> dict[str, Any]:
    """An item as OpenAI's clients read it back: with an id and parts."""
    if item.type == "message" and isinstance(item.content, str):
        part = Part(
            type="output_text" if item.role == "assistant" else "input_text", text=item.content
        )
        item = msgspec.structs.replace(item, content=[part])
    return {"id": f"{item.type}_{number}", "status": "completed", **msgspec.to_builtins(item)}


async def delete_response(call: Call) -> Deleted:
    """Delete a stored response."""
    _stored(call, call.request.path_params["response"])
    call.store.drop(call.request.path_params["response"])
    return Deleted(id=call.request.path_params["response"])


def _stored(call: Call, response: str, *, field: str | None = None) -> Stored:
    """A stored response, whose id is in the path or in a field of the body."""
    data = call.store.get(response)
    if data is None:
        raise ApiError(
            f"There is no stored response {response[:100]!r}. Responses are kept in memory "
            "while there is room, if they are created with store=true.",
            code="response_not_found" if field is None else "previous_response_not_found",
            param=field,
            status=404 if field is None else 400,
        )
    return msgspec.json.decode(data, type=Stored)

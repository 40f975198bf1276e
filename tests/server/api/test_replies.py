"""Replies in pieces: where a single call ends one, and the items and events of mixed pieces."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from ortolan.runtime import ChatTicket, Completion, Reply, Sampling, Timings, Tokenizer, ToolCall
from ortolan.runtime.chat.parser import Piece
from ortolan.server.api.replies import ReplyReader
from ortolan.server.api.responses.answer import Answer
from ortolan.server.api.responses.body import ResponseBody
from ortolan.server.api.responses.create import _response

CALLS = [ToolCall(id=f"call{n}", name="f", arguments={"x": n}) for n in range(2)]
PIECES = [
    Piece(reasoning="hm", tokens=(1, 2)),
    Piece(content="so ", tokens=(3,)),
    Piece(content="call", tokens=(4,)),
    Piece(tool_call=CALLS[0], tokens=(5, 6)),
    Piece(tool_call=CALLS[1], tokens=(7,)),
    Piece(content="end", tokens=(8,)),
]


class FakeTicket:
    """A ticket whose reply is complete, with a token more than its pieces."""

    def __init__(self) -> None:
        self.is_cancelled = False

    async def pieces(self) -> AsyncIterator[Piece]:
        for piece in PIECES:
            yield piece

    def cancel(self) -> None:
        self.is_cancelled = True

    def __await__(self) -> Any:
        yield from ()
        timings = Timings(
            prompt_tokens=1,
            new_tokens=9,
            prefill_s=0,
            decode_s=0,
            time_to_first_token_s=0,
            tokens_per_second=0,
            prefill_tokens_per_second=0,
        )
        completion = Completion(
            text="", tokens=tuple(range(1, 10)), finish_reason="cancelled", timings=timings
        )
        return Reply(content="", reasoning="", tool_calls=(), completion=completion)


def reader(ticket: FakeTicket, *, single_call: bool) -> ReplyReader:
    return ReplyReader(cast(ChatTicket, ticket), with_tokens=True, single_call=single_call)


def test_a_single_call_cancels_the_rest() -> None:
    ticket = FakeTicket()
    reply = asyncio.run(reader(ticket, single_call=True).reply())
    assert ticket.is_cancelled
    assert reply.tool_calls == (CALLS[0],)
    assert (reply.reasoning, reply.content) == ("hm", "so call")
    assert reply.completion.tokens == (1, 2, 3, 4, 5, 6)
    assert reply.completion.timings.new_tokens == 6
    assert reply.completion.finish_reason == "stop"


def test_items_follow_the_pieces() -> None:
    response = _response(ResponseBody(input="x"), "m", [], Sampling())
    answer = Answer(response, cast(Tokenizer, None), with_logprobs=False)

    async def events() -> list[Any]:
        source = answer.events(reader(FakeTicket(), single_call=False))
        return [msgspec.to_builtins(event) async for event in source]

    made = asyncio.run(events())
    names = [event["type"].removeprefix("response.") for event in made]
    text = ["output_item.added", "content_part.added", "output_text.delta"]
    done = ["output_text.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta"]
    call += ["function_call_arguments.done", "output_item.done"]
    assert names == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning.delta", "reasoning.done", "content_part.done", "output_item.done"),
        *(*text, "output_text.delta", *done),
        *(*call, *call),
        *(*text, *done),
        "completed",
    ]
    kinds = [(item["type"], item["status"]) for item in made[-1]["response"]["output"]]
    assert [kind for kind, _ in kinds] == [
        *("reasoning", "message", "function_call", "function_call", "message"),
    ]
    assert {status for _, status in kinds} == {"completed"}
    assert [e["output_index"] for e in made if "added" in e["type"] and "item" in e] == [*range(5)]
    assert made[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}

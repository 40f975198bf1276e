"""`/v1/responses/compact`: a conversation as a summary, which a new one can start from."""

import time
from typing import Any, Literal

import msgspec

from ortolan.runtime import ChatTicket, Sampling
from ortolan.server.api.bodies import Body, new_id
from ortolan.server.api.responses.items import messages_of
from ortolan.server.api.responses.resource import ResponseUsage, usage_of
from ortolan.server.api.responses.stored import read_items
from ortolan.server.api.responses.summaries import write_summary
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer, Endpoint
from ortolan.server.models import ServedModel

__all__ = ["COMPACT"]

REQUEST = (
    "Summarize this conversation for someone who continues it: facts, decisions and open questions."
)
"""Message that asks for a summary."""

MAX_TOKENS = 1024
"""Maximum length of a summary."""


class CompactBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A conversation to summarize; see `ResponseBody`."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


class Compaction(msgspec.Struct, kw_only=True):
    """A summary; send it as an input item in place of what it summarizes."""

    id: str
    encrypted_content: str
    type: Literal["compaction"] = "compaction"


class CompactedResponse(msgspec.Struct, kw_only=True):
    """Items to start a new conversation from."""

    id: str
    created_at: int
    output: list[Compaction]
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"


async def compact(call: Call, body: CompactBody) -> Answer:
    """Summarize a conversation."""
    served = await call.model(body.model)
    served.expect("decoder", what="chat")
    items = read_items(body.input, body.previous_response_id, [call.store])
    messages = messages_of(items, instructions=body.instructions)
    messages.append({"role": "user", "content": REQUEST})
    tickets: list[ChatTicket] = await call.submit(
        lambda: served.service.chat(
            messages, n=1, max_new_tokens=_room(served, messages), sampling=Sampling()
        )
    )
    reply = await tickets[0]
    usage = usage_of(reply.completion)
    call.notes |= {"prompt_tokens": usage.input_tokens, "new_tokens": usage.output_tokens}
    return CompactedResponse(
        id=new_id("resp_"),
        created_at=int(time.time()),
        output=[Compaction(id=new_id("cmp_"), encrypted_content=write_summary(reply.content))],
        usage=usage,
    )


def _room(served: ServedModel, messages: list[dict[str, Any]]) -> int:
    """Maximum length of the summary: what the context leaves."""
    context: int = served.model.manifest.context_length
    return max(1, min(MAX_TOKENS, context - len(served.model.chat_template.prompt(messages).ids)))


COMPACT = Endpoint(
    method="POST",
    path="/v1/responses/compact",
    handler=compact,
    body=CompactBody,
    answer=CompactedResponse,
    summary="Summarize a conversation of items.",
)

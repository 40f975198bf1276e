"""Submits chats, and reads their replies."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ortolan.runtime import Piece, Reply, Ticket
from ortolan.runtime.chat.reply import reply_of
from ortolan.server.api.bodies import SamplingFields, ToolChoice
from ortolan.server.api.options import options_of
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel


async def submit_chat(
    call: Call,
    served: ServedModel,
    body: SamplingFields,
    messages: Sequence[Any],
    *,
    limit: int | None,
    tools: list[dict[str, Any]],
    choice: str | ToolChoice | None,
    variables: Mapping[str, Any],
    n: int = 1,
    **options: Any,
) -> list[Ticket[Reply]]:
    """Submit a conversation `n` times.

    Messages, tools and the choice among them have the form of chat completions. Variables of the
    template that are `None` stay out.
    """
    tools, choice = _offered(tools, choice)
    options |= {
        **options_of(body, served.model.recommended_sampling, limit=limit, choices=n),
        **served.options,
        "tools": tools or None,
        "tool_choice": choice if tools or choice != "none" else None,
        "variables": {key: value for key, value in variables.items() if value is not None} or None,
        "n": n,
    }

    def submit(most: int | None) -> list[Ticket[Reply]]:
        given = {**options, "max_new_tokens": most}
        tickets: list[Ticket[Reply]] = served.service.chat(messages, **given)
        return tickets

    return await call.submit_fitted(submit, options["max_new_tokens"])


def _offered(
    tools: list[dict[str, Any]], choice: str | ToolChoice | None
) -> tuple[list[dict[str, Any]], Any]:
    """The tools and the choice among them, which may allow some of them only."""
    if not isinstance(choice, ToolChoice):
        return tools, choice
    if choice.type == "function":
        return tools, {"type": "function", "function": choice.function or {"name": choice.name}}
    own = choice.allowed_tools or choice
    names, allowed = ([_name(tool) for tool in each] for each in (tools, own.tools or ()))
    missing = ", ".join(repr(name) for name in allowed if name not in names)
    if missing or not allowed:
        raise ApiError(
            f"tool_choice must list functions among the tools (got {missing[:200] or 'none'}).",
            param="tool_choice",
        )
    named = zip(tools, names, strict=True)
    return [tool for tool, name in named if name in allowed], own.mode or "auto"


def _name(tool: dict[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, dict) else None


class ReplyPieces(AsyncIterator[Piece]):
    """The pieces of a reply, and after them the reply.

    Args:
        ends_with_call: end the reply with its first call.
        joined: several pieces may come as one.
    """

    def __init__(self, ticket: Ticket[Reply], *, ends_with_call: bool, joined: bool) -> None:
        self.ticket = ticket if joined and not ends_with_call else ticket.pieces()
        self._pieces: list[Piece] | None = [] if ends_with_call else None
        self._is_cut = False

    async def __anext__(self) -> Piece:
        """Wait for the next piece; raises what `Ticket.result` does at the end."""
        if self._is_cut:
            raise StopAsyncIteration
        piece = await anext(self.ticket)
        if self._pieces is not None:
            self._pieces.append(piece)
            if piece.tool_call is not None:
                self._is_cut = True
                self.ticket.cancel()
        return piece

    async def reply(self) -> Reply:
        """Wait for the reply; raises what `Ticket.result` does."""
        if self._pieces is None:
            return await self.ticket
        async for _ in self:
            pass
        completion = (await self.ticket).completion
        if self._is_cut:  # what was generated until the cancellation depends on timing
            count = sum(len(piece.tokens) for piece in self._pieces)
            completion = replace(
                completion,
                tokens=completion.tokens[:count],
                logprobs=completion.logprobs and completion.logprobs[:count],
                finish_reason="stop",
                timings=replace(completion.timings, new_tokens=count),
            )
        return reply_of(self._pieces, completion)

"""Answers of one or more choices, whole or as a stream of chunks, and their token counts."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ortolan.runtime import Completion, Ticket
from ortolan.server.api.bodies import ChoicesFields, ChunkOptions
from ortolan.server.call import Call
from ortolan.server.events import EventStream, event
from ortolan.server.models import ServedModel


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Parts of the prompt tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Parts of the completion tokens.

    Attributes:
        accepted_prediction_tokens: guessed tokens that were right.
        rejected_prediction_tokens: guessed tokens that were wrong; they are not part of the
            completion.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Token counts. The prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChoicesAnswer(msgspec.Struct, kw_only=True):
    """Fields of both answers and chunks."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


def new_id(prefix: str) -> str:
    """A random identifier."""
    return f"{prefix}{secrets.token_hex(12)}"


T = TypeVar("T")
W = TypeVar("W", bound=ChoicesAnswer)
C = TypeVar("C", bound=ChoicesAnswer)


class ChoiceReader(Protocol):
    """Reads one choice, either its parts or the whole.

    Attributes:
        completion: of the choice, once it has been read.
    """

    ticket: Ticket[Any]
    completion: Completion

    def parts(self) -> AsyncIterator[Any]:
        """Yield the choices of the chunks."""

    async def whole(self) -> Any:
        """Wait for the choice of the answer."""


async def answer(
    call: Call,
    served: ServedModel,
    body: ChoicesFields,
    readers: Sequence[ChoiceReader],
    *,
    whole: type[W],
    chunk: type[C],
    prefix: str,
    prompts: int = 1,
) -> W | EventStream[C]:
    """Answer with choices, of which each prompt has equally many."""
    head: dict[str, Any] = {
        "id": new_id(prefix),
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": served.fingerprint,
    }
    if body.stream:
        return EventStream(_events(call, body, readers, chunk(**head, choices=[]), prompts))
    choices = [await reader.whole() for reader in readers]
    return whole(**head, choices=choices, usage=_noted_usage(call, readers, prompts))


async def _events(
    call: Call,
    body: ChoicesFields,
    readers: Sequence[ChoiceReader],
    chunk: ChoicesAnswer,
    prompts: int,
) -> AsyncIterator[bytes]:
    """Chunks of all choices, as they come."""
    options = body.stream_options or ChunkOptions()
    if options.include_usage:
        chunk.usage = None
    has_counts = options.include_usage and options.continuous_usage_stats
    async for part in _merged([reader.parts() for reader in readers]):
        chunk.choices = [part]
        if has_counts:
            chunk.usage = _usage_so_far([reader.ticket for reader in readers], prompts)
        yield event(chunk)
    usage = _noted_usage(call, readers, prompts)
    if options.include_usage:
        chunk.choices, chunk.usage = [], usage
        yield event(chunk)


async def _merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield the items of several sources as they come."""
    if len(sources) == 1:
        async for item in sources[0]:
            yield item
        return
    waiting = {asyncio.ensure_future(anext(source, None)): source for source in sources}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                source, next_item = waiting.pop(future), future.result()
                if next_item is not None:
                    yield next_item
                    waiting[asyncio.ensure_future(anext(source, None))] = source
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _noted_usage(call: Call, readers: Sequence[ChoiceReader], prompts: int) -> Usage:
    """Counts of all completions, which the access log notes, too."""
    timings = [reader.completion.timings for reader in readers]
    count = len(timings) // prompts
    of_prompts = [timings[start : start + count] for start in range(0, len(timings), count)]
    accepted = sum(t.accepted_tokens for t in timings)
    usage = _usage(
        prompt=sum(of_prompt[0].prompt_tokens for of_prompt in of_prompts),
        new=sum(t.new_tokens for t in timings),
        cached=sum(max(t.cached_tokens for t in of_prompt) for of_prompt in of_prompts),
        accepted=accepted,
        rejected=sum(t.drafted_tokens for t in timings) - accepted,
    )
    call.note_tokens(usage.prompt_tokens, usage.completion_tokens)
    return usage


def _usage_so_far(tickets: Sequence[Ticket[Any]], prompts: int) -> Usage:
    """Counts while choices are generated, without those of cached and guessed tokens."""
    first = tickets[:: len(tickets) // prompts]
    return _usage(
        prompt=sum(ticket.prompt_progress[1] for ticket in first),
        new=sum(ticket.new_tokens for ticket in tickets),
    )


def _usage(
    *, prompt: int, new: int, cached: int = 0, accepted: int = 0, rejected: int = 0
) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=new,
        total_tokens=prompt + new,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected
        ),
    )

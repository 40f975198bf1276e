"""`/v1/completions`: the continuation of a prompt.

Source: https://platform.openai.com/docs/api-reference/completions
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion, Ticket
from ortolan.runtime.limits import MAX_SEED
from ortolan.server.api.bodies import (
    ChoicesFields,
    checked_limit,
    fitted,
    grammar_of,
    new_id,
    options_of,
)
from ortolan.server.api.merge import merged
from ortolan.server.api.text_choice import ChoiceReader, TextChoice
from ortolan.server.api.usage import Usage, note, total, usage_of, usage_so_far
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.events import EventStream, event
from ortolan.server.models import ServedModel

MAX_CHOICES = 256
"""Maximum number of choices of a body, over all of its prompts."""

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens`."""


class CompletionBody(ChoicesFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a completion. A prompt is text or token ids; a list of them is a batch."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    add_special_tokens: Literal[True] | None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """Continuations; also an event of a stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


async def create(call: Call, body: CompletionBody) -> TextCompletion | EventStream[TextCompletion]:
    """Continue one or more prompts."""
    served = await call.model(body.model)
    served.expect("decoder", "encoder-decoder", what="complete a prompt")
    prompts, count = _prompts(body.prompt), 1 if body.n is None else body.n
    if not 1 <= count * len(prompts) <= MAX_CHOICES:
        raise ApiError(
            f"A body may ask for 1 to {MAX_CHOICES} choices (got {len(prompts)} prompts "
            f"with n={count}).",
            param="n",
        )
    if body.echo:
        served.expect("decoder", what="echo a prompt")
    options = {
        **options_of(body, served.model.recommended_sampling, choices=body.n),
        "grammar": await grammar_of(None, body.structured_outputs),
        "logprobs": body.logprobs,
        "prompt_logprobs": _prompt_logprobs(body),
    }
    wanted = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    limit = checked_limit("max_tokens", wanted, least=0)
    tickets = await call.submit(
        lambda: fitted(
            lambda most: _submitted(served, prompts, count, {**options, "max_new_tokens": most}),
            limit,
        )
    )
    choices = [
        ChoiceReader(
            index,
            ticket,
            tokenizer=served.model.tokenizer,
            with_logprobs=body.logprobs is not None,
            prompt=prompts[index // count] if body.echo else None,
        )
        for index, ticket in enumerate(tickets)
    ]
    if body.stream:
        return EventStream(_events(call, choices, served, body, len(prompts)))
    whole = [await choice.whole() for choice in choices]
    usage = _usage([await ticket for ticket in tickets], len(prompts))
    note(call, usage)
    return TextCompletion(
        id=new_id("cmpl-"),
        created=int(time.time()),
        model=served.name,
        choices=whole,
        usage=usage,
        system_fingerprint=served.fingerprint,
    )


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError("prompt must not be an empty list.", param="prompt")
    return [prompt] if isinstance(prompt[0], int) else prompt


def _submitted(
    served: ServedModel, prompts: Sequence[Any], count: int, options: dict[str, Any]
) -> list[Ticket[Completion]]:
    """Submit every prompt `count` times, or none; seeds count up."""
    tickets: list[Ticket[Completion]] = []
    try:
        for prompt in prompts:
            for number in range(count):
                sampling = options["sampling"]
                seeded = replace(sampling, seed=(sampling.seed + number) % (MAX_SEED + 1))
                tickets.append(served.service.submit(prompt, **{**options, "sampling": seeded}))
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
    return tickets


async def _events(
    call: Call,
    choices: Sequence[ChoiceReader],
    served: ServedModel,
    body: CompletionBody,
    prompts: int,
) -> AsyncIterator[bytes]:
    chunk = TextCompletion(
        id=new_id("cmpl-"),
        created=int(time.time()),
        model=served.name,
        choices=[],
        system_fingerprint=served.fingerprint,
        usage=None if body.streams_usage else msgspec.UNSET,
    )
    async for _, part in merged(choices):
        chunk.choices = [part]
        if body.streams_counts:
            chunk.usage = usage_so_far([choice.ticket for choice in choices], prompts)
        yield event(chunk)
    usage = _usage([await choice.ticket for choice in choices], prompts)
    note(call, usage)
    if body.streams_usage:
        chunk.choices, chunk.usage = [], usage
        yield event(chunk)


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """Those of an echoed prompt. Without new tokens, the prompt is computed for them alone."""
    if body.max_tokens == 0:
        return body.logprobs or 0
    return body.logprobs if body.echo else None


def _usage(done: Sequence[Completion], prompts: int) -> Usage:
    """Counts over all prompts, each counted once."""
    count = len(done) // prompts
    return total(usage_of(done[at : at + count]) for at in range(0, len(done), count))

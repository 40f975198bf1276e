"""`/v1/completions`: the continuation of a prompt.

Source: https://platform.openai.com/docs/api-reference/completions
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion, Ticket, Tokenizer, TokenLogprobs
from ortolan.server.api.bodies import SamplingFields, new_id, options_of
from ortolan.server.api.merge import merged
from ortolan.server.api.usage import Usage, total, usage_of
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer, Endpoint
from ortolan.server.errors import ApiError
from ortolan.server.events import EventStream, event
from ortolan.server.models import ServedModel

__all__ = ["ENDPOINTS"]

MAX_CHOICES = 256
"""Maximum number of choices of a body, over all of its prompts."""

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens`."""


class CompletionBody(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a completion. A prompt is text or token ids; a list of them is a batch."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class TextLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, a list per kind.

    Attributes:
        top_logprobs: those of the chosen token and of the most probable ones.
        text_offset: character in the text of the choice at which each token begins.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct, kw_only=True):
    """A continuation, or in a stream a part of one."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: TextLogprobs | None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """Continuations; also an event of a stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


async def create(call: Call, body: CompletionBody) -> Answer:
    """Continue one or more prompts."""
    served = await call.model(body.model)
    served.expect("decoder", "encoder-decoder", what="complete a prompt")
    prompts, count = _prompts(body.prompt), 1 if body.n is None else body.n
    if not 1 <= count * len(prompts) <= MAX_CHOICES:
        raise ApiError(
            status=400,
            message=f"A body may ask for 1 to {MAX_CHOICES} choices (got {len(prompts)} prompts "
            f"with n={count}).",
            param="n",
        )
    options = {
        **options_of(body, served.model.recommended_sampling),
        "max_new_tokens": DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
        "logprobs": body.logprobs,
    }
    tickets = await call.submit(lambda: _submitted(served, prompts, count, options))
    if body.stream:
        return EventStream(_events(call, tickets, served, body, len(prompts)))
    done = [await ticket for ticket in tickets]
    usage = _usage(done, len(prompts))
    call.notes |= {"prompt_tokens": usage.prompt_tokens, "new_tokens": usage.completion_tokens}
    return TextCompletion(
        id=new_id("cmpl-"),
        created=int(time.time()),
        model=served.name,
        choices=[
            TextChoice(
                index=index,
                text=completion.text,
                finish_reason=_finish(completion),
                logprobs=_logprobs(completion.logprobs, served.model.tokenizer),
            )
            for index, completion in enumerate(done)
        ],
        usage=usage,
        system_fingerprint=served.fingerprint,
    )


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(status=400, message="prompt must not be an empty list.", param="prompt")
    return [prompt] if isinstance(prompt[0], int) else prompt


def _submitted(
    served: ServedModel, prompts: Sequence[Any], count: int, options: dict[str, Any]
) -> list[Ticket]:
    """Submit every prompt `count` times, or none; seeds count up."""
    tickets: list[Ticket] = []
    try:
        for prompt in prompts:
            for number in range(count):
                sampling = options["sampling"]
                seeded = replace(sampling, seed=(sampling.seed + number) % (1 << 32))
                tickets.append(served.service.submit(prompt, **{**options, "sampling": seeded}))
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
    return tickets


async def _events(
    call: Call,
    tickets: Sequence[Ticket],
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
    async for index, text in merged(tickets):
        chunk.choices = [TextChoice(index=index, text=text, finish_reason=None)]
        yield event(chunk)
    done = [await ticket for ticket in tickets]
    for index, completion in enumerate(done):
        chunk.choices = [
            TextChoice(
                index=index,
                text="",
                finish_reason=_finish(completion),
                logprobs=_logprobs(completion.logprobs, served.model.tokenizer),
            )
        ]
        yield event(chunk)
    usage = _usage(done, prompts)
    call.notes |= {"prompt_tokens": usage.prompt_tokens, "new_tokens": usage.completion_tokens}
    if body.streams_usage:
        chunk.choices, chunk.usage = [], usage
        yield event(chunk)


def _finish(completion: Completion) -> Literal["stop", "length"]:
    return "length" if completion.finish_reason == "length" else "stop"


def _usage(done: Sequence[Completion], prompts: int) -> Usage:
    """Counts over all prompts, each counted once."""
    count = len(done) // prompts
    return total(usage_of(done[at : at + count]) for at in range(0, len(done), count))


def _logprobs(
    logprobs: Sequence[TokenLogprobs] | None, tokenizer: Tokenizer | None
) -> TextLogprobs | None:
    if logprobs is None or tokenizer is None:
        return None
    tokens = [_text(tokenizer, entry.token) for entry in logprobs]
    offsets = [0]
    for text in tokens:
        offsets.append(offsets[-1] + len(text))
    return TextLogprobs(
        tokens=tokens,
        token_logprobs=[entry.logprob for entry in logprobs],
        top_logprobs=[
            {
                _text(tokenizer, token): logprob
                for token, logprob in [(entry.token, entry.logprob), *entry.top]
            }
            for entry in logprobs
        ],
        text_offset=offsets[:-1],
    )


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode(errors="replace")


ENDPOINTS = [
    Endpoint(
        method="POST",
        path="/v1/completions",
        handler=create,
        body=CompletionBody,
        answer=TextCompletion,
        event=TextCompletion,
        summary="Continue prompts.",
    )
]

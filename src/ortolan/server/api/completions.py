"""`/v1/completions`: the continuation of a prompt.

Source: https://platform.openai.com/docs/api-reference/completions
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ortolan.runtime import Completion, Ticket, Tokenizer, TokenLogprobs
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.limits import MAX_SEED
from ortolan.server.api.bodies import ChoicesFields, Inputs, listed
from ortolan.server.api.choices import ChoicesAnswer, answer
from ortolan.server.api.logprobs import TextLogprobs, TextLogprobsWriter
from ortolan.server.api.options import grammar_of, options_of
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.events import EventStream
from ortolan.server.models import ServedModel

MAX_CHOICES = 256
"""Maximum number of choices of a body, over all of its prompts."""

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens`."""

Finish = Literal["stop", "length"]


class CompletionBody(ChoicesFields, kw_only=True, forbid_unknown_fields=True):
    """Body of a completion. A prompt is text or token ids; a list of them is a batch."""

    prompt: Inputs
    logprobs: int | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    add_special_tokens: Literal[True] | None = None


class TextChoice(msgspec.Struct, kw_only=True):
    """A continuation, or in a stream a part of one."""

    index: int
    text: str
    finish_reason: Finish | None
    logprobs: TextLogprobs | None = None


class TextCompletion(ChoicesAnswer, kw_only=True):
    """Continuations; also an event of a stream."""

    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"


async def create(call: Call, body: CompletionBody) -> TextCompletion | EventStream[TextCompletion]:
    """Continue one or more prompts."""
    served = await call.model(body.model)
    served.expect("decoder", "encoder-decoder", what="complete a prompt")
    if body.echo:
        served.expect("decoder", what="echo a prompt")
    prompts, count = listed(body.prompt), 1 if body.n is None else body.n
    if not 1 <= count * len(prompts) <= MAX_CHOICES:
        raise ApiError(
            f"A body may ask for 1 to {MAX_CHOICES} choices (got {len(prompts)} prompts "
            f"with n={count}).",
            param="n",
        )
    tokenizer = served.model.tokenizer
    if tokenizer is None:
        raise no_tokenizer("complete a prompt")
    options = await _options(body, served)

    def submit(most: int | None) -> list[Ticket[Completion]]:
        return _submitted(served, prompts, count, {**options, "max_new_tokens": most})

    tickets = await call.submit_fitted(submit, options["max_new_tokens"])
    readers = [
        _Reader(index, ticket, tokenizer, body, prompts[index // count])
        for index, ticket in enumerate(tickets)
    ]
    return await answer(
        call,
        served,
        body,
        readers,
        whole=TextCompletion,
        chunk=TextCompletion,
        prefix="cmpl-",
        prompts=len(prompts),
    )


async def _options(body: CompletionBody, served: ServedModel) -> dict[str, Any]:
    limit = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    scores = body.logprobs if body.echo else None
    if limit == 0:  # the prompt is computed for its log-probabilities alone
        scores = body.logprobs or 0
    return {
        **options_of(body, served.model.recommended_sampling, limit=limit, choices=body.n),
        **served.options,
        "grammar": await grammar_of(None, body.structured_outputs),
        "logprobs": body.logprobs,
        "prompt_logprobs": scores,
    }


def _submitted(
    served: ServedModel, prompts: Sequence[Any], count: int, options: dict[str, Any]
) -> list[Ticket[Completion]]:
    """Submit every prompt `count` times, or none; seeds count up."""
    sampling = options["sampling"]
    tickets: list[Ticket[Completion]] = []
    try:
        for prompt in prompts:
            for number in range(count):
                seeded = replace(sampling, seed=(sampling.seed + number) % (MAX_SEED + 1))
                tickets.append(served.service.submit(prompt, **{**options, "sampling": seeded}))
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
    return tickets


class _Reader:
    """Reads one choice, which begins with the prompt if the body asks for an echo."""

    completion: Completion

    def __init__(
        self,
        index: int,
        ticket: Ticket[Completion],
        tokenizer: Tokenizer,
        body: CompletionBody,
        prompt: str | list[int],
    ) -> None:
        has_logprobs = body.logprobs is not None
        self.ticket = ticket.pieces() if has_logprobs else ticket
        self._index = index
        self._writer = TextLogprobsWriter(tokenizer) if has_logprobs else None
        self._echo: str | None = None
        if body.echo:
            self._echo = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)

    async def parts(self) -> AsyncIterator[TextChoice]:
        """Yield the choices of the chunks."""
        async for piece in self.ticket:
            if piece.content or self._writer is not None:
                yield self._part(piece.content, piece.logprobs)
        self.completion = await self.ticket
        yield self._part("", None, self._finish)

    async def whole(self) -> TextChoice:
        """Wait for the choice of the answer."""
        self.completion = await self.ticket
        return self._part(self.completion.text, self.completion.logprobs, self._finish)

    @property
    def _finish(self) -> Finish:
        return "length" if self.completion.finish_reason == "length" else "stop"

    def _part(
        self, text: str, scores: Sequence[TokenLogprobs] | None, finish: Finish | None = None
    ) -> TextChoice:
        first = None
        if self._echo is not None:  # the prompt has been computed before the first part
            sequence = self.ticket.work
            text, self._echo = self._echo + text, None
            first = sequence.request.prompt[0]
            scores = (*(sequence.prompt_logprobs or ()), *(scores or ()))
        has_tokens = bool(scores) or first is not None
        logprobs = None
        if self._writer is not None and has_tokens:
            logprobs = self._writer.write(scores or (), first=first)
        return TextChoice(index=self._index, text=text, finish_reason=finish, logprobs=logprobs)

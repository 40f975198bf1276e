"""Token counts of an answer."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ortolan.runtime import Completion, Ticket
from ortolan.server.call import Call


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


def usage_of(completions: Iterable[Completion]) -> Usage:
    """Counts of the completions of one prompt."""
    timings = [completion.timings for completion in completions]
    accepted = sum(t.accepted_tokens for t in timings)
    return _usage(
        prompt=timings[0].prompt_tokens,
        new=sum(t.new_tokens for t in timings),
        cached=max(t.cached_tokens for t in timings),
        accepted=accepted,
        rejected=sum(t.drafted_tokens for t in timings) - accepted,
    )


def usage_so_far(tickets: Sequence[Ticket[Any]], prompts: int) -> Usage:
    """Counts while choices are generated, without those of cached and guessed tokens."""
    first = tickets[:: len(tickets) // prompts]
    return _usage(
        prompt=sum(ticket.prompt_progress[1] for ticket in first),
        new=sum(ticket.new_tokens for ticket in tickets),
        cached=0,
        accepted=0,
        rejected=0,
    )


def total(usages: Iterable[Usage]) -> Usage:
    """Sum over several prompts."""
    usages = list(usages)
    details = [usage.completion_tokens_details for usage in usages]
    return _usage(
        prompt=sum(usage.prompt_tokens for usage in usages),
        new=sum(usage.completion_tokens for usage in usages),
        cached=sum(usage.prompt_tokens_details.cached_tokens for usage in usages),
        accepted=sum(detail.accepted_prediction_tokens for detail in details),
        rejected=sum(detail.rejected_prediction_tokens for detail in details),
    )


def note(call: Call, usage: Usage) -> None:
    """Note the counts for the access log."""
    call.notes |= {"prompt_tokens": usage.prompt_tokens, "new_tokens": usage.completion_tokens}


def _usage(*, prompt: int, new: int, cached: int, accepted: int, rejected: int) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=new,
        total_tokens=prompt + new,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected
        ),
    )

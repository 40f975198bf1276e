"""What was generated for one request: a text, why it ended, and where the time went."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Completion", "FinishReason", "Hypothesis", "Timings", "TokenLogprobs", "rate"]

FinishReason = Literal["length", "stop", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time went, on a clock that nobody sets.

    Attributes:
        prompt_tokens: of the prompt; of the source, for a text that is written from one.
        cached_tokens: of the prompt, those whose states were there already and were not computed.
        drafted_tokens: guesses at the new tokens; `accepted_tokens` of them were right.
        prefill_s: seconds for the prompt, or for the sources that were encoded together.
        decode_s: seconds from the first new token to the last.
        time_to_first_token_s: seconds from the start of the request, other texts included.
        tokens_per_second: of the new tokens after the first; 0 when there is none.
        prefill_tokens_per_second: of the part of the prompt that was computed; 0 without one.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float
    tokens_per_second: float
    prefill_tokens_per_second: float
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """How likely the model took one new token to be, before any option changed that.

    Attributes:
        token: the chosen one.
        logprob: the natural logarithm of its probability.
        top: the likeliest ids and theirs, likeliest first; as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One text that a beam search found.

    Attributes:
        text: without special tokens; empty when the bundle has no tokenizer.
        tokens: every new id, the end-of-text id included.
        score: the sum of the log-probabilities over `len(tokens) ** length_penalty`.
    """

    text: str
    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated for one prompt, or from one source.

    Attributes:
        text: up to the stop text, without it; empty when the bundle has no tokenizer.
        tokens: every new id, those of a stop text and the end-of-text id included.
        finish_reason: `stop` for an end-of-text id or a stop text; `length` for
            `max_new_tokens` or the context; `cancelled`. A grammar that nothing can follow is a
            `stop` too.
        logprobs: one for each of `tokens`, where they were asked for.
        score: of a beam search, as for a `Hypothesis`; `None` without beams.
        alternatives: the next best texts of a beam search, best first.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    logprobs: tuple[TokenLogprobs, ...] | None = None
    score: float | None = None
    alternatives: tuple[Hypothesis, ...] = ()


def rate(count: int, seconds: float) -> float:
    """How many in a second; 0 where there was none or no time."""
    return count / seconds if count > 0 and seconds > 0 else 0.0

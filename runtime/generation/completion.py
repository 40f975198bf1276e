"""Completions: what was generated for a request, why it ended, and where the time went."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["length", "stop", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Token counts and times of a request, on a monotonic clock.

    Attributes:
        prompt_tokens: length of the prompt, or of an encoder-decoder's source.
        new_tokens: number of generated tokens.
        prefill_s: seconds for the prompt; for all sources that were encoded together.
        decode_s: seconds from the first new token to the last.
        time_to_first_token_s: seconds from the request to the first new token, waiting included.
        tokens_per_second: rate of the new tokens after the first; 0 if there are none.
        prefill_tokens_per_second: rate of the computed prompt tokens; 0 if there are none.
        cached_tokens: prompt tokens whose states came from a cache.
        drafted_tokens: number of guessed tokens.
        accepted_tokens: number of guesses that were right.
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
    """Log-probabilities at one token, before sampling options apply.

    Attributes:
        token: the id of the token.
        logprob: natural logarithm of its probability.
        top: the most probable ids with their log-probabilities, highest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A sequence found by beam search.

    Attributes:
        text: without special tokens; empty if the bundle has no tokenizer.
        tokens: all new ids, EOS included.
        score: the sum of the log-probabilities over `len(tokens) ** length_penalty`.
    """

    text: str
    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The result of a request.

    Attributes:
        text: the new text, up to the stop text; empty if the bundle has no tokenizer.
        tokens: all new ids, including EOS and those of a stop text.
        finish_reason: `stop` at EOS, at a stop text or at the end of a grammar; `length` at
            `max_new_tokens` or the end of the context; `cancelled`.
        timings: token counts and times.
        logprobs: one entry per token, if requested.
        prompt_logprobs: one entry per token of the prompt after the first, if requested. Nothing
            comes before the first token, so it has no probability.
        score: of a beam search, as in `Hypothesis`.
        alternatives: the next best sequences of a beam search, best first.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    score: float | None = None
    alternatives: tuple[Hypothesis, ...] = ()

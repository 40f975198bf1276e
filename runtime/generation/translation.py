"""What a source came to: a text, what else was found, and where the time went.

Knows finished rows and searches. Does not know how they were computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ortolan.runtime.generation.beam_search import Scored
from ortolan.runtime.generation.row import FinishReason, Row, Timings, rate
from ortolan.runtime.generation.translate import Found
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = ["Hypothesis", "Translation", "from_row", "from_search"]


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
class Translation:
    """What was written for one source.

    Attributes:
        text: up to the stop text, without it; empty when the bundle has no tokenizer.
        tokens: every new id, those of a stop text and the end-of-text id included.
        score: of a beam search, as for a `Hypothesis`; `None` without beams.
        finish_reason: `stop` for an end-of-text id or a stop text; `length` for
            `max_new_tokens` or the context; `cancelled`.
        timings: the prompt's are those of the source.
        alternatives: the next best texts, best first.
    """

    text: str
    tokens: tuple[int, ...]
    score: float | None
    finish_reason: FinishReason
    timings: Timings
    alternatives: tuple[Hypothesis, ...] = ()


def from_row(row: Row) -> Translation:
    """What a finished row came to."""
    done = row.completion()
    return Translation(
        text=done.text,
        tokens=done.tokens,
        score=None,
        finish_reason=done.finish_reason,
        timings=done.timings,
    )


def from_search(
    found: Found, tokenizer: Tokenizer | None, *, eos: frozenset[int], source_tokens: int
) -> Translation:
    """What a beam search came to.

    Args:
        found: at least one text, or none where it was cancelled before the first step.
        tokenizer: `None` leaves the texts empty.
        eos: ids that end a text.
        source_tokens: length of the source.
    """
    texts = [_hypothesis(scored, tokenizer, eos) for scored in found.texts]
    best, *others = texts or [Hypothesis(text="", tokens=(), score=0.0)]
    return Translation(
        text=best.text,
        tokens=best.tokens,
        score=best.score,
        finish_reason=_reason(best.tokens, found, eos),
        timings=Timings(
            prompt_tokens=source_tokens,
            new_tokens=len(best.tokens),
            prefill_s=found.encode_s,
            decode_s=found.decode_s,
            time_to_first_token_s=found.first_s,
            tokens_per_second=rate(len(best.tokens) - 1, found.decode_s),
            prefill_tokens_per_second=rate(source_tokens, found.encode_s),
        ),
        alternatives=tuple(others),
    )


def _reason(tokens: Sequence[int], found: Found, eos: frozenset[int]) -> FinishReason:
    if not found.is_complete:
        return "cancelled"
    return "stop" if tokens[-1] in eos else "length"


def _hypothesis(scored: Scored, tokenizer: Tokenizer | None, eos: frozenset[int]) -> Hypothesis:
    has_ended = scored.tokens[-1] in eos
    visible = scored.tokens[:-1] if has_ended else scored.tokens
    text = "" if tokenizer is None else tokenizer.decode(visible)
    return Hypothesis(text=text, tokens=scored.tokens, score=scored.score)

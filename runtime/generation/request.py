"""What to generate for one prompt: a request, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.limits import MAX_SEED

if TYPE_CHECKING:
    from ortolan.runtime.generation.drafts import Draft
    from ortolan.runtime.generation.grammar import Grammar

__all__ = ["Request", "numbered"]

_GREEDY, _UNCONSTRAINED = Sampling(), Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate for one prompt or from one source.

    Attributes:
        prompt: ids that the text begins with, at least one.
        limit: most new tokens, such that the text stays within the context.
        prompt_tokens: what timings count: of the prompt, or of the source.
        source: what the encoder takes, for a decoder with an encoder.
        min_new_tokens: so many new tokens come before one of `eos` may.
        eos: ids that end the text: end-of-text tokens, and stop tokens.
        stop: texts that end the text.
        logprobs: how many log-probabilities to keep at each token; `None` for none at all.
        grammar: what the text may be.
        constraints: tokens that are forced or ruled out.
        draft: where guesses at the next tokens come from; `None` steps token by token.
        conversation: whose last prompt is kept to its end, by a service; `None` for no one's.
        cancelled: checked between any two calls of the model; `None` where nobody cancels.
    """

    prompt: list[int]
    limit: int
    prompt_tokens: int
    source: Any = None
    min_new_tokens: int = 0
    sampling: Sampling = _GREEDY
    eos: frozenset[int] = frozenset()
    stop: Sequence[str] = ()
    logprobs: int | None = None
    grammar: "Grammar | None" = None
    constraints: Constraints = _UNCONSTRAINED
    draft: "Draft | None" = None
    conversation: bytes | None = None
    cancelled: Callable[[], bool] | None = None


def numbered(sampling: Sampling, index: int) -> Sampling:
    """The sampling of prompt number `index` of a list: seeds count up from that of the first."""
    if sampling.seed is None or index == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % (MAX_SEED + 1))

"""A checked request: what to generate for one prompt or from one source."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.pictures import FIRST
from ortolan.runtime.generation.sampling_options import Sampling

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Tokens
    from ortolan.runtime.engine.memory_plan import RequestMemory
    from ortolan.runtime.engine.pictures import Picture
    from ortolan.runtime.generation.drafts import Draft
    from ortolan.runtime.generation.grammar import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Tokens that a checkpoint forces or rules out, whatever the logits.

    Attributes:
        opening: the tokens to choose from at each of the first positions.
        last: the last new token when the sequence reaches its limit.
        suppressed: never chosen after the opening unless forced.
        suppressed_first: not chosen at the first position after the opening.
        rule: rules out more tokens after the opening, given those since.
    """

    opening: tuple[tuple[int, ...], ...] = ()
    last: int | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    rule: "Rule | None" = None

    @classmethod
    def of(cls, tokens: "Tokens") -> "Constraints":
        """The constraints in a manifest."""
        first = tokens.forced_first
        return cls(
            opening=() if first is None else ((first,),),
            last=tokens.forced_last,
            suppressed=tokens.suppressed,
            suppressed_first=tokens.suppressed_first,
        )

    def forced(self, index: int, limit: int) -> int | None:
        """The token at position `index` of at most `limit` new ones, if it is forced."""
        if self.last is not None and index == limit - 1:
            return self.last
        if index < len(self.opening) and len(self.opening[index]) == 1:
            return self.opening[index][0]
        return None

    def excluded(self, index: int) -> tuple[int, ...]:
        """Tokens that may not be chosen at position `index`, which is after the opening."""
        is_first = index == len(self.opening)
        return self.suppressed + self.suppressed_first if is_first else self.suppressed

    def suppress(self, logits_V: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Set the logits `(V,)` of tokens that may not follow `tokens` to -inf, in place."""
        index = len(tokens)
        if index < len(self.opening):
            allowed = list(self.opening[index])
            kept = logits_V[allowed]
            logits_V.fill(-math.inf)
            logits_V[allowed] = kept
            return
        # a loop: NumPy's fancy indexing costs more than a step of a tiny model can spare
        for token in self.excluded(index):
            logits_V[token] = -math.inf
        if self.rule is not None:
            self.rule(logits_V, tokens[len(self.opening) :])


Rule = Callable[[NDArray[np.float32], Sequence[int]], None]
"""Sets the logits `(V,)` of tokens that may not follow to -inf, in place, given those so far."""


_GREEDY, _UNCONSTRAINED = Sampling(), Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt or source, with everything that controls its generation.

    Attributes:
        limit: maximum number of new tokens; prompt and limit fit into the context.
        is_bounded: whether the caller set the limit; otherwise it is the rest of the context.
        prompt_tokens: length that timings report: of the prompt, or of the source.
        eos: ids that end the sequence: EOS tokens and stop tokens.
        adapter: number of the adapter; 0 for none.
        conversation: key under which a service keeps the end of the prompt for the next turn.
        pictures: images whose vectors have ids in the prompt, which need them to exist.
        placeholder: token that stands for a vector; `None` without images.
    """

    prompt: list[int]
    limit: int
    prompt_tokens: int
    is_bounded: bool = True
    source: Any = None
    min_new_tokens: int = 0
    sampling: Sampling = _GREEDY
    eos: frozenset[int] = frozenset()
    stop: Sequence[str] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: "Grammar | None" = None
    constraints: Constraints = _UNCONSTRAINED
    adapter: int = 0
    draft: "Draft | None" = None
    conversation: bytes | None = None
    cancelled: Callable[[], bool] | None = None
    pictures: "tuple[Picture, ...]" = ()
    placeholder: int | None = None

    @property
    def tokens(self) -> list[int]:
        """The prompt as ids of the vocabulary, with placeholders for vectors of images."""
        if self.placeholder is None:
            return self.prompt
        return [self.placeholder if own >= FIRST else own for own in self.prompt]


def check_memory(
    memory: "RequestMemory",
    requests: Sequence[Request],
    *,
    whole: bool = False,
    beams: int = 1,
    rows: int | None = None,
    held_tokens: int = 0,
) -> None:
    """Reject requests whose states cannot fit into memory together."""
    tokens = beams * sum(
        len(request.prompt) + (request.limit if whole or request.is_bounded else 1)
        for request in requests
    )
    memory.check(
        tokens=tokens,
        rows=beams * len(requests) if rows is None else rows,
        source_tokens=sum(
            request.prompt_tokens for request in requests if request.source is not None
        ),
        held_tokens=held_tokens,
        scored_tokens=max(
            (len(request.prompt) for request in requests if request.prompt_logprobs is not None),
            default=0,
        ),
    )

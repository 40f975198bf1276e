"""A text that is found by a beam search: all its beams, and what they came to."""

import time

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.generation.beam_search import BeamOptions, BeamSearch, Scored
from ortolan.runtime.generation.completion import (
    Completion,
    FinishReason,
    Hypothesis,
    Timings,
    rate,
)
from ortolan.runtime.generation.request import Request
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = ["BeamSequence"]


class BeamSequence:
    """One request and the search for its best texts.

    Args:
        request: its sampling, its stop texts and its limit are not looked at: `options` has those.
        options: of the search.
        n_best: texts to give.
        tokenizer: `None` leaves the texts empty.

    Attributes:
        finish_reason: `None` as long as it goes on.
        prefill_s: seconds that its source took, with those that were encoded together.
    """

    forced = ()
    """A search asks the model for every token."""

    def __init__(
        self, request: Request, options: BeamOptions, *, n_best: int, tokenizer: Tokenizer | None
    ) -> None:
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.prefill_s = 0.0
        self.prefilled_tokens = self.cached_tokens = 0
        self.drafted_tokens = self.accepted_tokens = 0
        self._options = options
        self._n_best = n_best
        self._tokenizer = tokenizer
        self._search = BeamSearch(options)
        self._error: OrtolanError | None = None
        self._started_at = self._first_at = self._last_at = time.monotonic()

    @property
    def next_tokens(self) -> list[int]:
        """The token to append next to each beam."""
        return self._search.tokens or self.request.prompt[-1:] * self._options.beams

    @property
    def parents(self) -> list[int]:
        """The beam that each beam goes on from."""
        return self._search.parents

    def advance(self, logits_GV: NDArray[np.float32]) -> None:
        """Extend the beams by a token, chosen or forced.

        Args:
            logits_GV: of each beam, `(G, V)`. Overwritten.

        Raises:
            NumericError: the greatest logit of a beam is not finite.
        """
        search, constraints = self._search, self.request.constraints
        forced = constraints.forced(search.length, self._options.max_tokens)
        if forced is None:
            search.advance(logits_GV, constraints.suppressed)
        else:
            search.force(forced)
        self._last_at = time.monotonic()
        if search.length == 1:
            self._first_at = self._last_at
        if search.is_done:
            best = search.best(1)[0].tokens
            self.finish_reason = "stop" if best[-1] in self._options.eos else "length"

    def finish(self, reason: FinishReason) -> None:
        """End the search, unless it has ended."""
        self.finish_reason = self.finish_reason or reason

    def fail(self, error: OrtolanError) -> None:
        """End the search by an error, which `completion` raises."""
        self._error = error
        self.finish("cancelled")

    def completion(self) -> Completion:
        """What the search came to: nothing where it was cancelled before the first token.

        Raises:
            NumericError: the model gave logits that are not finite.
        """
        if self._error is not None:
            raise self._error
        texts = [self._hypothesis(scored) for scored in self._search.best(self._n_best)]
        best, *others = texts or [Hypothesis(text="", tokens=(), score=0.0)]
        prompt_tokens, decode_s = self.request.prompt_tokens, self._last_at - self._first_at
        return Completion(
            text=best.text,
            tokens=best.tokens,
            finish_reason=self.finish_reason or "cancelled",
            timings=Timings(
                prompt_tokens=prompt_tokens,
                new_tokens=len(best.tokens),
                prefill_s=self.prefill_s,
                decode_s=decode_s,
                time_to_first_token_s=self._first_at - self._started_at,
                tokens_per_second=rate(len(best.tokens) - 1, decode_s),
                prefill_tokens_per_second=rate(prompt_tokens, self.prefill_s),
            ),
            score=best.score,
            alternatives=tuple(others),
        )

    def _hypothesis(self, scored: Scored) -> Hypothesis:
        has_ended = scored.tokens[-1] in self._options.eos
        visible = scored.tokens[:-1] if has_ended else scored.tokens
        text = "" if self._tokenizer is None else self._tokenizer.decode(visible)
        return Hypothesis(text=text, tokens=scored.tokens, score=scored.score)

"""A sequence found by beam search, with a row for each beam."""

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.beam_search import Beams, BeamSearch, Scored
from ortolan.runtime.generation.completion import Completion, Hypothesis
from ortolan.runtime.generation.request import Request
from ortolan.runtime.inputs.tokenizer import Tokenizer


class BeamSequence(ActiveSequence):
    """One request and the search for its best sequences."""

    def __init__(self, request: Request, settings: Beams, *, tokenizer: Tokenizer | None) -> None:
        super().__init__(request)
        self.next_tokens = request.prompt[-1:] * settings.beams
        self._settings = settings
        self._tokenizer = tokenizer
        self._search = BeamSearch(settings, eos=request.eos, max_tokens=request.limit)

    @property
    def parents(self) -> list[int]:
        """For each beam, the beam that it continues."""
        return self._search.parents

    def advance(self, logits_GV: NDArray[np.float32]) -> None:
        """Extend the beams by a token, chosen or forced. Overwrites the logits `(G, V)`."""
        search, constraints = self._search, self.request.constraints
        forced = constraints.forced(search.length, self.request.limit)
        if forced is None:
            search.advance(logits_GV, constraints.excluded(search.length))
        else:
            search.force(forced)
        self.next_tokens = search.tokens
        self._tick(search.length)
        if search.is_done:
            best = search.best(1)[0].tokens
            self.finish_reason = "stop" if best[-1] in self.request.eos else "length"

    def completion(self) -> Completion:
        """The best sequences; empty if the search was cancelled before the first token."""
        if self.error is not None:
            raise self.error
        ranked = [self._hypothesis(scored) for scored in self._search.best(self._settings.n_best)]
        best, *others = ranked or [Hypothesis(text="", tokens=(), score=0.0)]
        reason = self.finish_reason
        return Completion(
            text=best.text,
            tokens=best.tokens,
            finish_reason="cancelled" if reason is None or reason == "error" else reason,
            timings=self._timings(len(best.tokens)),
            score=best.score,
            alternatives=tuple(others),
        )

    def _hypothesis(self, scored: Scored) -> Hypothesis:
        has_ended = scored.tokens[-1] in self.request.eos
        visible = scored.tokens[:-1] if has_ended else scored.tokens
        text = "" if self._tokenizer is None else self._tokenizer.decode(visible)
        return Hypothesis(text=text, tokens=scored.tokens, score=scored.score)

"""Beam search over rows of logits, as defined by Hugging Face's `generate`.

A beam is an unfinished sequence. Every step extends all beams of a source by every token, keeps
the best extensions, and sets finished ones aside as hypotheses. With `G` beams and `e` EOS ids:

    1. the score of an extension is the sum of the log-probabilities of its tokens
    2. the best max(2, 1 + e) * G extensions are candidates: at least G of them do not end
    3. of these, the first G become hypotheses if they end; their score is divided by
       length ** length_penalty, and the best G hypotheses are kept
    4. the first G candidates that do not end become the beams
    5. the search ends when there are G hypotheses and, for `early_stopping`
           True     at once
           False    when the best beam would not be among them if it ended now
           "never"  when it would not be among them at the most favorable length
       and at `max_tokens` in any case, where every candidate ends

Ties: the lower beam wins, then the lower id. transformers leaves ties to `torch.topk`, which
promises no order.

Knows ids and logits of one source. Does not know the KV cache or other sources.

Shape letters: G beams, V vocabulary.

Source: transformers 5.23, `GenerationMixin._beam_search`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.completion import Completion, Hypothesis
from ortolan.runtime.generation.request import Request
from ortolan.runtime.inputs.tokenizer import Tokenizer

EarlyStopping = bool | Literal["never"]

_ENDED = -1.0e9
"""Score offset of finished extensions, so that they are continued only as a last resort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """Settings of a beam search; see `ortolan.runtime.generation.options.BeamOptions`."""

    beams: int
    n_best: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


class _Node(NamedTuple):
    """A sequence as its last token and the node before it, which beams share."""

    token: int
    before: "_Node | None"

    def tokens(self) -> tuple[int, ...]:
        node: _Node | None = self
        ids = []
        while node is not None:
            ids.append(node.token)
            node = node.before
        return tuple(reversed(ids))


class _Candidate(NamedTuple):
    """Extension of a beam by a token, with the sum of its log-probabilities."""

    score: float
    beam: int
    token: int


class BeamSequence(ActiveSequence):
    """One request and the search for its best sequences, with a row for each beam."""

    def __init__(self, request: Request, settings: Beams, *, tokenizer: Tokenizer | None) -> None:
        super().__init__(request)
        beams = settings.beams
        self.next_tokens = request.prompt[-1:] * beams
        self.parents = list(range(beams))
        self._settings = settings
        self._tokenizer = tokenizer
        self._nodes: list[_Node | None] = [None] * beams
        # all beams are equal at first: only beam 0 counts
        self._scores = [0.0] + [_ENDED] * (beams - 1)
        self._hypotheses: list[tuple[float, _Node]] = []
        self._length = 0
        self._is_settled = False

    def advance(self, logits_GV: NDArray[np.float32]) -> None:
        """Extend the beams by a token, chosen or forced. Overwrites the logits `(G, V)`."""
        constraints = self.request.constraints
        forced = constraints.forced(self._length, self.request.limit)
        if forced is None:
            candidates = self._candidates(logits_GV, constraints.excluded(self._length))
        else:
            ranked = sorted(enumerate(self._scores), key=lambda item: -item[1])
            candidates = [_Candidate(score, beam, forced) for beam, score in ranked]
        self._continue(candidates)
        self._tick(self._length)

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best sequences, best first: hypotheses, then beams of an unfinished search."""
        divisor = self._divisor(max(self._length, 1))
        unfinished = [
            (_single(score / divisor), node)
            for score, node in zip(self._scores, self._nodes, strict=True)
            if node is not None and not self._is_settled
        ]
        return [
            Hypothesis(text=self._text(node), tokens=node.tokens(), score=score)
            for score, node in [*self._hypotheses, *unfinished][:count]
        ]

    def completion(self) -> Completion:
        """The best sequences; empty if the search was cancelled before the first token."""
        if self.error is not None:
            raise self.error
        ranked = self.best(self._settings.n_best)
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

    def _text(self, node: _Node) -> str:
        if self._tokenizer is None:
            return ""
        has_ended = node.token in self.request.eos
        return self._tokenizer.decode(node.tokens()[:-1] if has_ended else node.tokens())

    def _candidates(
        self, logits_GV: NDArray[np.float32], suppressed: Sequence[int]
    ) -> list[_Candidate]:
        """The best extensions of all beams, best first."""
        highest_G = logits_GV.max(axis=1)
        if not all(map(math.isfinite, highest_G.tolist())):
            raise NumericError(
                f"The logits of step {self._length + 1} are not finite: the model overflows. "
                "Run `ortolan verify` on this device, or export in fp32."
            )
        # in place, in the order and precision of transformers: sums are equal to the last bit
        logits_GV -= highest_G[:, None]
        logits_GV -= np.log(np.exp(logits_GV).sum(axis=1))[:, None]
        logits_GV += np.array(self._scores, np.float32)[:, None]
        if suppressed:
            logits_GV[:, suppressed] = -math.inf
        # few candidates in a large vocabulary: repeated argmax is faster than sorting
        rows = list(logits_GV)
        tokens: list[int] = logits_GV.argmax(axis=1).tolist()
        scores = [row.item(token) for row, token in zip(rows, tokens, strict=True)]
        count = max(2, 1 + len(self.request.eos)) * self._settings.beams
        candidates = []
        for _ in range(min(count, logits_GV.size)):
            beam = scores.index(max(scores))
            row, token = rows[beam], tokens[beam]
            candidates.append(_Candidate(scores[beam], beam, token))
            row[token] = -math.inf
            tokens[beam] = token = int(row.argmax())
            scores[beam] = row.item(token)
        return candidates

    def _continue(self, candidates: list[_Candidate]) -> None:
        """Turn the best candidates into hypotheses, if they end, and into the next beams."""
        beams = self._settings.beams
        self._length += 1
        is_last = self._length >= self.request.limit
        ends = [is_last or candidate.token in self.request.eos for candidate in candidates]
        for candidate, has_ended in zip(candidates[:beams], ends, strict=False):
            if has_ended:
                self._keep(candidate)
        chosen = candidates[:beams]
        if any(ends):
            ranked = [
                candidate._replace(score=_single(candidate.score + _ENDED))
                if has_ended
                else candidate
                for candidate, has_ended in zip(candidates, ends, strict=True)
            ]
            chosen = sorted(ranked, key=lambda candidate: -candidate.score)[:beams]
        nodes = self._nodes
        self._nodes = [_Node(candidate.token, nodes[candidate.beam]) for candidate in chosen]
        self._scores = [candidate.score for candidate in chosen]
        self.next_tokens = [candidate.token for candidate in chosen]
        self.parents = [candidate.beam for candidate in chosen]
        self._is_settled = all(ends) or self._cannot_improve()
        if self._is_settled:
            last = self._hypotheses[0][1].token
            self.finish_reason = "stop" if last in self.request.eos else "length"

    def _keep(self, candidate: _Candidate) -> None:
        score = _single(candidate.score / self._divisor(self._length))
        node = _Node(candidate.token, self._nodes[candidate.beam])
        self._hypotheses.append((score, node))
        self._hypotheses.sort(key=lambda item: -item[0])  # stable: earlier ones win ties
        del self._hypotheses[self._settings.beams :]

    def _cannot_improve(self) -> bool:
        """Whether there are enough hypotheses and no beam can improve on them (step 5)."""
        settings = self._settings
        if len(self._hypotheses) < settings.beams:
            return False
        if settings.early_stopping is True:
            return True
        # log-probabilities are negative: above a penalty of 0, a score rises with the length
        favors_long = settings.early_stopping == "never" and settings.length_penalty > 0
        length = self.request.limit if favors_long else self._length
        reachable = _single(self._scores[0] / self._divisor(length))
        return reachable <= self._hypotheses[-1][0]

    def _divisor(self, length: int) -> float:
        return _single(length**self._settings.length_penalty)


def _single(value: float) -> float:
    """Round to float32, the precision in which transformers adds scores."""
    return float(np.float32(value))

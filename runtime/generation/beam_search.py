"""Beam search over rows of logits, as Hugging Face's `generate` defines it.

A beam is a text begun for a source. All beams of a source are extended by every token; the best
extensions go on, those that end are kept aside as hypotheses. With `G` beams and `e` ids that end
a text:

    1. the score of an extension is the sum of the log-probabilities of its tokens
    2. the best max(2, 1 + e) * G extensions are candidates: enough that G of them go on
    3. of these the first G become hypotheses where they end; their score is divided by
       length ** length_penalty, and the best G hypotheses are kept
    4. the first G candidates that do not end become the beams
    5. it is over when all G hypotheses are there and, for `early_stopping`
           True     at once
           False    when the best beam, were it to end now, would not be among them
           "never"  when it would not be among them even at the most favourable length
       and in any case at `max_tokens`, where every candidate ends

Knows ids and logits of one source. Does not know the session, the cache, text, nor other sources:
a source gives the same beside others as alone.

Equal scores: the beam and then the id that comes first wins. transformers leaves this to
`torch.topk`, which promises nothing.

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

__all__ = ["BeamOptions", "BeamSearch", "EarlyStopping", "Scored"]

EarlyStopping = bool | Literal["never"]

_ENDED = -1.0e9
"""Added to what ended, so that it goes on only where there is nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """What to search for, checked.

    Attributes:
        beams: texts that are extended at every step.
        eos: ids that end a text.
        max_tokens: most tokens of a text.
        length_penalty: above 0 favours long texts, below 0 short ones.
        early_stopping: see the module.
    """

    beams: int
    eos: frozenset[int]
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A text that was found.

    Attributes:
        tokens: its ids, the one that ended it included.
        score: the sum of their log-probabilities over `length ** length_penalty`.
    """

    tokens: tuple[int, ...]
    score: float


class _Text(NamedTuple):
    """A text as its last token and what comes before it, which beams share."""

    token: int
    before: "_Text | None"

    def tokens(self) -> tuple[int, ...]:
        """All ids, first to last."""
        text: _Text | None = self
        ids = []
        while text is not None:
            ids.append(text.token)
            text = text.before
        return tuple(reversed(ids))


class _Candidate(NamedTuple):
    """An extension of a beam: the sum of its log-probabilities, the beam, the token."""

    score: float
    beam: int
    token: int


class BeamSearch:
    """The search for one source.

    Attributes:
        tokens: the last id of each beam, to be fed to the model next.
        parents: which beam of the step before each beam extends.
        is_done: whether there is nothing left to find.
    """

    def __init__(self, options: BeamOptions) -> None:
        self._options = options
        self._kept = max(2, 1 + len(options.eos)) * options.beams
        self._length = 0
        self._texts: list[_Text | None] = [None] * options.beams
        # all beams are the same in the beginning: only the first counts
        self._scores = [0.0] + [_ENDED] * (options.beams - 1)
        self._found: list[tuple[float, _Text]] = []
        self.tokens: list[int] = []
        self.parents = list(range(options.beams))
        self.is_done = False

    @property
    def length(self) -> int:
        """Tokens of each beam."""
        return self._length

    def advance(self, logits_GV: NDArray[np.float32], suppressed: Sequence[int] = ()) -> None:
        """Extend the beams by a token.

        Args:
            logits_GV: of each beam, `(G, V)`. Overwritten.
            suppressed: ids that are not to be chosen, however likely.

        Raises:
            NumericError: the greatest logit of a beam is not finite. Names the step.
        """
        self._continue(self._candidates(logits_GV, suppressed))

    def force(self, token: int) -> None:
        """Extend all beams by this token, which costs nothing."""
        ranked = sorted(range(len(self._scores)), key=lambda beam: -self._scores[beam])
        self._continue([_Candidate(self._scores[beam], beam, token) for beam in ranked])

    def best(self, count: int) -> list[Scored]:
        """Give the best texts, best first: complete ones as far as there are, then beams."""
        divisor = self._divisor(max(self._length, 1))
        beams = zip(self._scores, self._texts, strict=True)
        begun = [
            (_single(score / divisor), text)
            for score, text in beams
            if text is not None and not self.is_done
        ]
        texts = [*self._found, *begun][:count]
        return [Scored(tokens=text.tokens(), score=score) for score, text in texts]

    def _candidates(
        self, logits_GV: NDArray[np.float32], suppressed: Sequence[int]
    ) -> list[_Candidate]:
        """The best extensions, best first: time after time the best that is left of all beams."""
        highest_G = logits_GV.max(axis=1)
        if not all(map(math.isfinite, highest_G.tolist())):
            raise NumericError(
                f"step {self._length + 1}: expected finite logits, got others. "
                "The model overflows; verify the bundle on this device, or export it in fp32."
            )
        # in place, and in the order and precision of transformers: sums are equal to the last bit
        logits_GV -= highest_G[:, None]
        logits_GV -= np.log(np.exp(logits_GV).sum(axis=1))[:, None]
        logits_GV += np.array(self._scores, np.float32)[:, None]
        if suppressed:
            logits_GV[:, suppressed] = -math.inf
        rows = list(logits_GV)
        tokens: list[int] = logits_GV.argmax(axis=1).tolist()
        scores = [row.item(token) for row, token in zip(rows, tokens, strict=True)]
        found = []
        for _ in range(min(self._kept, logits_GV.size)):
            beam = scores.index(max(scores))
            row, token = rows[beam], tokens[beam]
            found.append(_Candidate(scores[beam], beam, token))
            row[token] = -math.inf
            tokens[beam] = token = int(row.argmax())
            scores[beam] = row.item(token)
        return found

    def _continue(self, candidates: list[_Candidate]) -> None:
        """Keep what ends among the candidates, go on with what does not."""
        beams = self._options.beams
        self._length += 1
        is_last = self._length >= self._options.max_tokens
        ends = [is_last or candidate.token in self._options.eos for candidate in candidates]
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
        texts = self._texts
        self._texts = [_Text(each.token, texts[each.beam]) for each in chosen]
        self._scores = [each.score for each in chosen]
        self.tokens = [each.token for each in chosen]
        self.parents = [each.beam for each in chosen]
        self.is_done = all(ends) or self._is_settled()

    def _keep(self, candidate: _Candidate) -> None:
        """Put a complete text among the hypotheses, if it is one of the best."""
        score = _single(candidate.score / self._divisor(self._length))
        text = _Text(candidate.token, self._texts[candidate.beam])
        self._found.append((score, text))
        self._found.sort(key=lambda found: -found[0])  # stable: of equals the earlier stays first
        del self._found[self._options.beams :]

    def _is_settled(self) -> bool:
        """Whether no beam can become one of the hypotheses, or none is to."""
        options = self._options
        if len(self._found) < options.beams:
            return False
        if options.early_stopping is True:
            return True
        # what is added to a score is negative: a long text is as good as it can get at its end
        favours_long = options.early_stopping == "never" and options.length_penalty > 0
        length = options.max_tokens if favours_long else self._length
        reachable = _single(self._scores[0] / self._divisor(length))
        return reachable <= self._found[-1][0]

    def _divisor(self, length: int) -> float:
        return _single(length**self._options.length_penalty)


def _single(value: float) -> float:
    """Round to float32, in which transformers adds scores up."""
    return float(np.float32(value))

"""Speculation: brings one text forward by drafts, several tokens in a call where they are right."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.generation.drafts import Draft
from ortolan.runtime.generation.pace import Pace
from ortolan.runtime.generation.sampled_text import SampledText

__all__ = ["Speculation"]


class Speculation:
    """The drafts of one text.

    Every call has at least two tokens, with a draft or without: so the kernels are those of a
    prompt, by which a row is the same to the bit whatever is computed beside it, and the text is
    the same whichever drafts were right.

    Args:
        draft: where guesses come from.
        text: with its first new token.
        runner: an exact one.
        row: of the text.
    """

    def __init__(self, draft: Draft, text: SampledText, runner: Runner, row: int) -> None:
        self._text, self._runner, self._row = text, runner, row
        self._drafter = draft.begin(text.request.prompt)
        self._seen = 0
        self._pace = Pace()

    def step(self, advance: Callable[[NDArray[np.float32]], None]) -> None:
        """Append the newest token and a draft to the row, and to the text what turns out right.

        Args:
            advance: gives the text the logits `(V,)` that follow its newest token.
        """
        text, runner, row = self._text, self._runner, self._row
        begun_at = time.perf_counter()
        self._drafter.extend(text.tokens[self._seen :])
        self._seen = len(text.tokens)
        room = min(text.request.limit - self._seen, runner.wide_tokens) - 1
        draft = self._drafter.propose(min(self._pace.choose(), room)) if room > 0 else []
        drafted_at = time.perf_counter()
        length, tokens = runner.slots.lengths[row], [text.tokens[-1], *draft]
        logits_SV = runner.wide_step(row, tokens)
        computed_at = time.perf_counter()
        right = 0
        for logits_V in logits_SV:
            advance(logits_V)
            if text.finish_reason is not None or text.tokens[-1:] != draft[right : right + 1]:
                break
            right += 1
        runner.slots.rewind(min(length + 1 + right, length + len(tokens)), row=row)
        text.drafted_tokens += len(draft)
        text.accepted_tokens += right
        self._pace.learn(
            drafted=len(draft),
            right=right,
            draft_s=drafted_at - begun_at,
            size=len(tokens),
            seconds=computed_at - drafted_at,
        )

"""A sequence while it is generated: the base of sampled sequences and beam searches."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.generation.completion import (
    Completion,
    FinishReason,
    Timings,
    TokenLogprobs,
)
from ortolan.runtime.generation.histogram import Histogram
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampling import token_logprobs

if TYPE_CHECKING:
    from ortolan.runtime.engine.host_states import Snapshot
    from ortolan.runtime.generation.drafts import Speculation

TRIES = 3
"""Times that work is tried before its request fails, unless it gets on in between."""


class ActiveSequence(ABC):
    """One request and what has been generated for it, in one row or in a row per beam.

    Attributes:
        next_tokens: newest token of each row, which the next call of the model reads.
        parents: for each row, the row that it continues.
        finish_reason: `None` while the sequence is generated.
        cached_tokens: tokens of the prompt whose states came from the prefix cache.
        queued_s: seconds from the request to its first slot; `None` before.
        gaps_s: times between new tokens.
        turn: order in which sequences are computed: negative priority, then arrival.
        suspended: states, while the sequence has given up its slot.
        speculation: its drafts, once prefill has begun.
        is_apart: whether the next call computes it alone, since one with others has failed.
    """

    next_tokens: Sequence[int]
    parents: Sequence[int] = (0,)

    def __init__(self, request: Request) -> None:
        self.request = request
        self.finish_reason: FinishReason | Literal["error"] | None = None
        self.prefill_s = 0.0
        self.prefilled_tokens = self.cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.drafted_tokens = self.accepted_tokens = 0
        self.queued_s: float | None = None
        self.gaps_s = Histogram()
        self.error: OrtolanError | None = None
        self.turn = (0, 0)
        self.suspended: Snapshot | None = None
        self.speculation: Speculation | None = None
        self.is_apart = False
        self._failures, self._failed_at = 0, (-1, -1)
        self._started_at = self._first_at = self._last_at = time.monotonic()

    @property
    def is_done(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None

    @property
    def was_cancelled(self) -> bool:
        """Whether the sequence was cancelled."""
        return self.finish_reason == "cancelled"

    @property
    def progress(self) -> tuple[int, int]:
        """Number of new tokens, and of the prompt's tokens with computed states."""
        return 0, self.prefilled_tokens

    def restart(self) -> None:
        """Begin again at the prompt, because the states are lost; not for beam searches."""
        self.prompt_logprobs = []
        self.suspended = self.speculation = None
        self.is_apart = False

    def score_prompt(self, start: int, logits_SV: NDArray[np.float32]) -> None:
        """Note the log-probabilities of the prompt's tokens after `start`."""
        count, following = self.request.prompt_logprobs or 0, self.request.prompt[start + 1 :]
        self.prompt_logprobs += [
            token_logprobs(logits_V, token, count)
            for logits_V, token in zip(logits_SV, following, strict=False)
        ]

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that must follow, whatever the logits; usually none."""
        return ()

    @abstractmethod
    def advance(self, logits: NDArray[np.float32]) -> None:
        """Choose the next token from logits `(V,)`; `(G, V)` in a search with G beams."""

    @abstractmethod
    def completion(self) -> Completion:
        """The result; raises the error that ended the sequence, if any."""

    def finish(self, reason: FinishReason | Literal["error"]) -> None:
        """End the sequence, unless it has ended."""
        self.finish_reason = self.finish_reason or reason

    def fail(self, error: OrtolanError) -> None:
        """End the sequence with an error, which `completion` raises."""
        self.error = error
        self.finish("error")

    def may_try_again(self) -> bool:
        """Count a failure of the sequence's work where it is now."""
        self._failures = 1 if self.progress > self._failed_at else self._failures + 1
        self._failed_at = max(self._failed_at, self.progress)
        return self._failures < TRIES

    def enter(self) -> None:
        """Note the time of the first slot."""
        if self.queued_s is None:
            self.queued_s = time.monotonic() - self._started_at

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to the first new token; 0 before."""
        return self._first_at - self._started_at

    def _tick(self, new_tokens: int) -> None:
        """Note the time of the newest token."""
        now = time.monotonic()
        if new_tokens == 1:
            self._first_at = now
        else:
            self.gaps_s.add(now - self._last_at)
        self._last_at = now

    def _timings(self, new_tokens: int) -> Timings:
        prompt_tokens, decode_s = self.request.prompt_tokens, self._last_at - self._first_at
        return Timings(
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            prefill_s=self.prefill_s,
            decode_s=decode_s,
            time_to_first_token_s=self.first_token_s,
            tokens_per_second=_rate(new_tokens - 1, decode_s),
            prefill_tokens_per_second=_rate(prompt_tokens - self.cached_tokens, self.prefill_s),
            cached_tokens=self.cached_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0

"""Load and totals of a service."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import ComputeError, ServiceError
from ortolan.runtime.generation.histogram import Histogram

if TYPE_CHECKING:
    from ortolan.runtime.engine.prefix_cache import PrefixCounts
    from ortolan.runtime.generation.sampled_sequence import SampledSequence
    from ortolan.runtime.serving.ticket import Work

FAILING = 2
"""Requests in a row that the model could not compute, after which it counts as failing."""

SMOOTHING = 0.2
"""Weight of the newest gap in the average time between two finished requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """Load of a service, and totals since its start.

    Attributes:
        slots: maximum number of sequences that are computed together.
        running: requests that hold a slot.
        waiting: requests without a slot, suspended ones included.
        finished: requests that have ended, for whatever reason.
        prompt_tokens: of all finished requests.
        cached_tokens: those of `prompt_tokens` that came from the prefix cache.
        new_tokens: of all finished requests.
        drafted_tokens: guessed tokens of all finished requests.
        accepted_tokens: those of `drafted_tokens` that were right.
        state_bytes: size of the states in memory, without the prefix cache.
        queued_s: times to the first slot, of all finished requests.
        first_token_s: times to the first new token, of all finished requests.
        gaps_s: times between new tokens, of all finished requests.
        refused: rejected requests by error code.
        failed: accepted requests that ended with an error, by error code.
        failed_calls: calls of the model that failed, most of which were repeated with success.
        cache: contents and totals of the prefix cache.
    """

    slots: int
    running: int
    waiting: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    state_bytes: int
    queued_s: Histogram
    first_token_s: Histogram
    gaps_s: Histogram
    refused: Mapping[str, int]
    failed: Mapping[str, int]
    failed_calls: int
    cache: "PrefixCounts"


class Counts(ABC):
    """Counts finished and rejected requests, and the average gap between two finished ones."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.failed_calls = self._failed_in_a_row = 0
        self.gap_s = 1.0
        self.finished = 0
        self._ended_at = time.monotonic()

    def begin(self) -> None:
        """Start a gap now: idle time does not count."""
        self._ended_at = time.monotonic()

    @property
    def is_failing(self) -> bool:
        """Whether the model could not compute the latest requests."""
        return self._failed_in_a_row >= FAILING

    def add(self, work: "Work", error: OrtolanError | None) -> None:
        """Count a finished request, and the error that ended it, if any."""
        if error is not None:
            self.failed[error.code] += 1
        if isinstance(error, ComputeError | ServiceError):
            self._failed_in_a_row += 1
        elif error is None and not work.was_cancelled:
            self._failed_in_a_row = 0
        now = time.monotonic()
        self.gap_s += SMOOTHING * (now - self._ended_at - self.gap_s)
        self._ended_at = now
        self.finished += 1
        self._add(work)

    @abstractmethod
    def _add(self, work: Any) -> None:
        """Count what is special to this kind of request."""


class GenerationCounts(Counts):
    """Counts requests that generate."""

    def __init__(self) -> None:
        super().__init__()
        self._prompt_tokens = self._cached_tokens = self._new_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self._queued_s, self._first_token_s, self._gaps_s = Histogram(), Histogram(), Histogram()

    def _add(self, work: "SampledSequence") -> None:
        self._prompt_tokens += work.request.prompt_tokens
        self._cached_tokens += work.cached_tokens
        self._new_tokens += len(work.tokens)
        self._drafted_tokens += work.drafted_tokens
        self._accepted_tokens += work.accepted_tokens
        self._gaps_s.merge(work.gaps_s)
        if work.queued_s is not None:
            self._queued_s.add(work.queued_s)
        if work.tokens:
            self._first_token_s.add(work.first_token_s)

    def stats(
        self, *, slots: int, running: int, waiting: int, state_bytes: int, cache: "PrefixCounts"
    ) -> ServiceStats:
        """These counts together with the current load."""
        return ServiceStats(
            slots=slots,
            running=running,
            waiting=waiting,
            finished=self.finished,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            new_tokens=self._new_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            state_bytes=state_bytes,
            queued_s=self._queued_s.copy(),
            first_token_s=self._first_token_s.copy(),
            gaps_s=self._gaps_s.copy(),
            refused=dict(self.refused),
            failed=dict(self.failed),
            failed_calls=self.failed_calls,
            cache=cache,
        )

"""Load and totals of a service."""

import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ortolan.runtime.errors import ComputeError, NumericError, ServiceError
from ortolan.runtime.generation.histogram import Histogram

if TYPE_CHECKING:
    from ortolan.runtime.encoding.call import EncoderCall
    from ortolan.runtime.engine.prefix_cache import PrefixCounts
    from ortolan.runtime.generation.sampled_sequence import SampledSequence
    from ortolan.runtime.serving.worker import Work

FAILING = 2
"""Requests in a row that the model could not compute, after which it counts as failing."""

SMOOTHING = 0.2
"""Weight of the newest gap in the average time between two finished requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Load of a service, and totals since its start.

    Attributes:
        running: requests that hold a slot; in an encoder, those with some inputs computed.
        waiting: the other unfinished requests, suspended ones included.
        finished: requests that have ended, for whatever reason.
        refused: rejected requests by error code.
        failed: accepted requests that ended with an error, by error code.
        failed_calls: calls of the model that failed, most of which were repeated with success.
    """

    running: int = 0
    waiting: int = 0
    finished: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failed_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats(Stats):
    """Load of a service that generates, and totals since its start: those of `Stats`, and more.

    Attributes:
        slots: maximum number of sequences that are computed together.
        prompt_tokens: of all finished requests.
        cached_tokens: those of `prompt_tokens` that came from the prefix cache.
        new_tokens: of all finished requests.
        drafted_tokens: guessed tokens of all finished requests.
        accepted_tokens: those of `drafted_tokens` that were right.
        state_bytes: size of the states in memory, without the prefix cache.
        queued_s: times to the first slot, of all finished requests.
        first_token_s: times to the first new token, of all finished requests.
        gaps_s: times between new tokens, of all finished requests.
        cache: contents and totals of the prefix cache.
    """

    slots: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    state_bytes: int = 0
    queued_s: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    gaps_s: Histogram = field(default_factory=Histogram)
    cache: "PrefixCounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStats(Stats):
    """Load of an encoder's service, and totals since its start: those of `Stats`, and more.

    Attributes:
        inputs: of all finished requests.
        tokens: of all finished requests.
        batches: number of calls of the graph.
    """

    inputs: int = 0
    tokens: int = 0
    batches: int = 0


S = TypeVar("S", bound=Stats)


class Counts(Generic[S]):
    """Counts requests, and the average gap between two that end. `counted` adds one that ended."""

    def __init__(self, stats: S, counted: Callable[[S, Any], S]) -> None:
        self._stats, self._counted = stats, counted
        self._failed_in_a_row = 0
        self.gap_s = 1.0
        self._ended_at = time.monotonic()

    def begin(self) -> None:
        """Start a gap now: idle time does not count."""
        self._ended_at = time.monotonic()

    @property
    def is_failing(self) -> bool:
        """Whether the model could not compute the latest requests."""
        return self._failed_in_a_row >= FAILING

    def add_refused(self, code: str) -> None:
        """Count a rejected request."""
        self._stats.refused[code] += 1

    def add_failed_call(self) -> None:
        """Count a call of the model that failed."""
        self._stats = replace(self._stats, failed_calls=self._stats.failed_calls + 1)

    def add(self, work: "Work") -> None:
        """Count a request that has ended, and the error that ended it, if any."""
        error = work.error
        if error is not None:
            self._stats.failed[error.code] += 1
        if isinstance(error, ComputeError | ServiceError):
            self._failed_in_a_row += 1
        elif isinstance(error, NumericError) or (error is None and not work.was_cancelled):
            self._failed_in_a_row = 0  # others may have ended without a call of the model
        now = time.monotonic()
        self.gap_s += SMOOTHING * (now - self._ended_at - self.gap_s)
        self._ended_at = now
        self._stats = self._counted(self._stats, work)

    def stats(self, *, running: int, waiting: int) -> S:
        """A copy of the totals, with the current load."""
        return replace(deepcopy(self._stats), running=running, waiting=waiting)


def with_sequence(stats: ServiceStats, sequence: "SampledSequence") -> ServiceStats:
    """Add a sequence that has ended."""
    stats.gaps_s.merge(sequence.gaps_s)
    if sequence.queued_s is not None:
        stats.queued_s.add(sequence.queued_s)
    if sequence.tokens:
        stats.first_token_s.add(sequence.first_token_s)
    return replace(
        stats,
        finished=stats.finished + 1,
        prompt_tokens=stats.prompt_tokens + sequence.request.prompt_tokens,
        cached_tokens=stats.cached_tokens + sequence.cached_tokens,
        new_tokens=stats.new_tokens + len(sequence.tokens),
        drafted_tokens=stats.drafted_tokens + sequence.drafted_tokens,
        accepted_tokens=stats.accepted_tokens + sequence.accepted_tokens,
    )


def with_call(stats: EncoderStats, call: "EncoderCall[Any]") -> EncoderStats:
    """Add a call that has ended."""
    return replace(
        stats,
        finished=stats.finished + 1,
        inputs=stats.inputs + len(call.items),
        tokens=stats.tokens + call.tokens,
    )

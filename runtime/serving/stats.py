"""What a service does now, and has done."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ortolan.runtime.engine.prefix_cache import PrefixCounts
from ortolan.runtime.generation.sampled_sequence import SampledSequence

__all__ = ["Counts", "ServiceStats"]

SMOOTHING = 0.2
"""Weight of the last gap between the ends of two texts, beside those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """What a service does, and has done since it was made.

    Attributes:
        slots: texts that are computed together, at most.
        running: texts that have a slot.
        waiting: texts that have none, suspended ones among them.
        finished: texts that ended, whatever their end.
        prompt_tokens: of all texts that ended.
        cached_tokens: of `prompt_tokens`, those that were not computed.
        new_tokens: of all texts that ended.
        refused: requests by the code of the error that they got.
        cache: what the prefix cache holds, and has done.
    """

    slots: int
    running: int
    waiting: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    refused: Mapping[str, int]
    cache: PrefixCounts


class Counts:
    """Counts texts as they end, and requests that are refused.

    Attributes:
        refused: requests by the code of the error that they got.
        gap_s: seconds between the ends of two texts, of late.
    """

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.gap_s = 1.0
        self._ended_at = time.monotonic()
        self._finished = self._prompt_tokens = self._cached_tokens = self._new_tokens = 0

    def begin(self) -> None:
        """There is work again: what was before is no gap."""
        self._ended_at = time.monotonic()

    def add(self, text: SampledSequence) -> None:
        """A text has ended."""
        now = time.monotonic()
        self.gap_s += SMOOTHING * (now - self._ended_at - self.gap_s)
        self._ended_at = now
        self._finished += 1
        self._prompt_tokens += text.request.prompt_tokens
        self._cached_tokens += text.cached_tokens
        self._new_tokens += len(text.tokens)

    def stats(self, *, slots: int, running: int, waiting: int, cache: PrefixCounts) -> ServiceStats:
        """These counts, and what is so now."""
        return ServiceStats(
            slots=slots,
            running=running,
            waiting=waiting,
            finished=self._finished,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            new_tokens=self._new_tokens,
            refused=dict(self.refused),
            cache=cache,
        )

"""Tokens of time in the text of a window (Radford et al. 2023, section 2.3).

A segment is a time, text and another time: `<|0.00|> One.<|1.40|><|1.40|> Two.<|2.80|>`. The end of
the window cuts off any text after the last pair of times, so the next window covers it again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import Speech


@dataclass(frozen=True, slots=True)
class TimeRule:
    """Rules out tokens that break the order of times.

    Attributes:
        speech: with the tokens of time.
        end: the EOS token. Ids below it are text.
    """

    speech: Speech
    end: int

    def __call__(self, logits_V: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Set the logits `(V,)` of tokens that may not follow `tokens` to -inf, in place."""
        speech, first = self.speech, self.speech.first_timestamp
        logits_V[speech.no_timestamps] = -math.inf
        if not tokens:  # the text begins with a time
            logits_V[:first] = -math.inf
            if speech.latest_start is not None:
                logits_V[first + speech.latest_start + 1 :] = -math.inf
            return
        after_time = tokens[-1] >= first
        # a time at the very begin counts as the second one of a pair
        after_pair = after_time and (len(tokens) < 2 or tokens[-2] >= first)
        if after_pair:
            logits_V[first:] = -math.inf
        elif after_time:
            logits_V[: self.end] = -math.inf
        latest = next((token for token in reversed(tokens) if token >= first), None)
        if latest is not None:  # times never go back; a segment may begin when another ends
            opens = after_time and not after_pair
            logits_V[first : latest if opens else latest + 1] = -math.inf
        if _total(logits_V[first:]) > logits_V[:first].max():
            logits_V[:first] = -math.inf


def _total(logits_N: NDArray[np.float32]) -> float:
    """Logarithm of the sum of the exponentials."""
    top = float(logits_N.max(initial=-math.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(np.exp(logits_N.astype(np.float64) - top).sum())


@dataclass(frozen=True, slots=True)
class Span:
    """A segment in the text of a window.

    Attributes:
        start: in encoder vectors from the start of the window.
        end: in encoder vectors from the start of the window.
        part: slice of its tokens.
    """

    start: int
    end: int
    part: slice


def spans(tokens: Sequence[int], *, first_timestamp: int, length: int) -> tuple[list[Span], int]:
    """Split the text of a window at its pairs of times."""
    is_time = [token >= first_timestamp for token in tokens]
    ends = [index + 1 for index, pair in enumerate(pairwise(is_time)) if all(pair)]
    if not ends:
        times = [token - first_timestamp for token in tokens if token >= first_timestamp]
        start = times[0] if is_time[:1] == [True] else 0
        end = times[-1] if len(times) > 1 else length
        return ([Span(start, end, slice(0, len(tokens)))] if tokens else []), length
    # a time without a partner ends the speech, and what follows is silence
    is_whole = is_time[-2:] == [False, True]
    if is_whole:
        ends.append(len(tokens))
    found = [
        Span(tokens[start] - first_timestamp, tokens[end - 1] - first_timestamp, slice(start, end))
        for start, end in pairwise([0, *ends])
    ]
    return found, length if is_whole else found[-1].end

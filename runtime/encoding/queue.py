"""The queue of an encoder: inputs of several calls, computed in batches of similar length.

    call A   ▮▮▮▮▮▮▮▮   ▮▮▮▮▮▮▮▮   ▮▮▮        blocks of similar length, one per turn
    call B   ▮▮                               joins the next turn, not the end of the queue

Each round computes the first waiting input together with others of its length, of any call. A call
of many inputs takes its turns with later ones, so it does not block them.

The inputs of a batch that fails are tried again, each alone, so that only those fail that are the
reason.
"""

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from ortolan.runtime.encoding.batches import MAX_BATCH_ROWS, batches
from ortolan.runtime.encoding.call import EncoderCall, Item
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import typed

TRIES = 3
"""Times that an input is tried before its call fails."""

WINDOW = 8 * MAX_BATCH_ROWS
"""Number of waiting inputs among which those of similar length are sought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    order: tuple[int, int, int]
    call: EncoderCall[Any]
    item: Item
    failures: int = 0


class EncoderQueue:
    """Calls that are computed together. One thread at a time may use it."""

    def __init__(self, rows: Rows) -> None:
        self.batches = 0
        self._rows = rows
        self._waiting: list[_Waiting] = []
        self._computing: list[_Waiting] = []
        self._begun: set[EncoderCall[Any]] = set()
        self._turn = 0
        self._arrivals = count()

    def submit(self, work: EncoderCall[Any], *, priority: int = 0) -> None:
        """Let the inputs of a call wait: higher priorities first, then by turn and arrival."""
        arrival = next(self._arrivals)
        longest_first = sorted(work.items, key=lambda item: -item.length)
        self._waiting += [
            _Waiting(
                order=(-priority, self._turn + 1 + place // MAX_BATCH_ROWS, arrival),
                call=work,
                item=item,
            )
            for place, item in enumerate(longest_first)
        ]
        self._waiting.sort(key=lambda waiting: waiting.order)

    def cancel(self, work: EncoderCall[Any]) -> None:
        """End a call before the next batch, or forget one that was cancelled."""
        work.cancel()
        self._forget({work})

    def round(self) -> bool:
        """Compute a batch. `False` if nothing waits."""
        if not self._waiting:
            return False
        window = self._waiting[:WINDOW]
        lengths = [waiting.item.length for waiting in window]
        chosen = {0}
        if not window[0].failures:
            chosen = set(next(batch for batch in batches(lengths) if 0 in batch))
        self._turn = window[0].order[1]
        rest = [waiting for place, waiting in enumerate(window) if place not in chosen]
        self._waiting[:WINDOW] = rest
        self._computing = [window[place] for place in sorted(chosen)]
        self._compute(self._computing)
        self._computing = []
        return True

    def recover(self, error: Exception) -> None:
        """Go on after an exception of `round`: try the inputs of its batch again, each alone.

        An input that fails `TRIES` times ends its call with the error.
        """
        failed, self._computing = self._computing, []
        tried = [replace(waiting, failures=waiting.failures + 1) for waiting in failed]
        for waiting in tried:
            if waiting.failures >= TRIES:
                waiting.call.put(waiting.item, typed(error))
        self._waiting[:0] = tried
        self._forget({waiting.call for waiting in tried if waiting.call.done()})

    @property
    def in_slots(self) -> int:
        """Number of unfinished calls of which some outputs have come."""
        return len(self._begun)

    @property
    def held_tokens(self) -> int:
        """Always 0: an encoder keeps no states."""
        return 0

    def _compute(self, batch: list[_Waiting]) -> None:
        self.batches += 1
        calls = {waiting.call for waiting in batch}
        outputs = self._rows.compute([waiting.item for waiting in batch])
        for waiting, output in zip(batch, outputs, strict=True):
            waiting.call.put(waiting.item, output)
        self._begun |= calls
        self._forget({call for call in calls if call.done()})

    def _forget(self, ended: set[EncoderCall[Any]]) -> None:
        """Forget calls that have ended, and what still waits of them."""
        self._begun -= ended
        if any(not call.is_complete for call in ended):
            self._waiting = [one for one in self._waiting if one.call not in ended]

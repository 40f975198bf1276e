"""Scheduler: which sequences wait, prefill or decode, and in which slot.

    submit ──► waiting ──admit──► prefilling ──start──► running ──finish──►
                  ▲                    │                   │
                  └──────suspend───────┴───────────────────┘

A decode step computes all slots from 0 to the last running one, so gaps cost time: a new sequence
gets the lowest free slot, and when none is waiting, the last ones move down. Higher priorities go
first and may take the slot of a lower one, which then waits to continue.

Knows the order of work. Does not know tokens, tensors or time.
"""

from bisect import insort
from collections.abc import Iterator
from itertools import count
from typing import Generic, Literal, TypeVar

Work = Literal["prefill", "step"]

FULL = 0.75
"""Share of the slots of a decode step that must be running; below it, sequences move down."""

S = TypeVar("S")


class Scheduler(Generic[S]):
    """Sequences by what they do next; each is in one place, by its turn or by slot.

    `revision` increases whenever `running` changes.
    """

    def __init__(self, slots: int, *, prefill_first: bool = True) -> None:
        self.slots = slots
        self.waiting: list[S] = []
        self.prefilling: dict[int, S] = {}
        self.running: dict[int, S] = {}
        self.revision = 0
        self._prefill_first = prefill_first
        self._last: Work = "step"
        self._arrivals = count()
        self._orders: dict[S, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Number of unfinished sequences."""
        return len(self.waiting) + len(self.prefilling) + len(self.running)

    @property
    def submitted(self) -> list[tuple[S, int]]:
        """All sequences in the order of their turns, each with its priority."""
        return [
            (sequence, -self._order(sequence)[0])
            for sequence in sorted(self._orders, key=self._order)
        ]

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return len(self.prefilling) + len(self.running) == self.slots

    def submit(self, sequence: S, *, priority: int = 0) -> None:
        """Let a sequence wait for a slot."""
        self._orders[sequence] = (-priority, next(self._arrivals))
        insort(self.waiting, sequence, key=self._order)

    def admit(self, sequence: S) -> int:
        """Give the lowest free slot to a waiting sequence. One must be free."""
        slot = next(self._free())
        self.waiting.remove(sequence)
        self.prefilling[slot] = sequence
        return slot

    def outranked(self) -> S | None:
        """The sequence to suspend for the first waiting one: the last of lower priority."""
        last = max((*self.prefilling.values(), *self.running.values()), key=self._order)
        return last if self._order(last)[0] > self._order(self.waiting[0])[0] else None

    def suspend(self, sequence: S) -> int:
        """Let a sequence give up its slot and wait, in its former place. Returns the slot."""
        slot = self._take(sequence)
        if slot is None:
            raise ValueError("suspend: the sequence has no slot")
        insort(self.waiting, sequence, key=self._order)
        return slot

    def next(self) -> Work | None:
        """Choose the next piece of work; `None` if all sequences have ended."""
        if self.prefilling and self.running and not self._prefill_first:
            self._last = "prefill" if self._last == "step" else "step"
        elif self.prefilling:
            self._last = "prefill"
        elif self.running:
            self._last = "step"
        else:
            return None
        return self._last

    def next_prompt(self) -> tuple[int, S]:
        """The slot and the sequence to prefill next. There must be one."""
        return min(self.prefilling.items(), key=lambda item: self._order(item[1]))

    def start(self, slot: int) -> None:
        """Move a sequence from prefilling to running."""
        self.running[slot] = self.prefilling.pop(slot)
        self.revision += 1

    def finish(self, sequence: S) -> int | None:
        """Remove a sequence, wherever it is. Returns the slot that is now free, if any."""
        del self._orders[sequence]
        slot = self._take(sequence)
        if slot is None:
            self.waiting.remove(sequence)
        return slot

    def compact(self) -> list[tuple[int, int]]:
        """Move running sequences down into free slots if a decode step has too many gaps."""
        if self.waiting or not self.running or len(self.running) > FULL * (1 + max(self.running)):
            return []
        moves = []
        for free in list(self._free()):
            last = max(self.running)
            if free > last:
                break
            self.running[free] = self.running.pop(last)
            moves.append((last, free))
        self.revision += 1
        return moves

    def _order(self, sequence: S) -> tuple[int, int]:
        return self._orders[sequence]

    def _take(self, sequence: S) -> int | None:
        """Remove a sequence from its slot, if it has one."""
        for stage in (self.prefilling, self.running):
            for slot, other in stage.items():
                if other == sequence:
                    del stage[slot]
                    self.revision += 1
                    return slot
        return None

    def _free(self) -> Iterator[int]:
        for slot in range(self.slots):
            if slot not in self.prefilling and slot not in self.running:
                yield slot

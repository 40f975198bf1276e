"""Scheduler: which texts wait, which are prefilled, which run, and in which slot.

A text that is submitted waits for a slot, has its prompt prefilled there, and then takes a token in
each step. It leaves whenever it ends, and its slot goes to the next. A step computes the slots from
the first to the last that runs, so holes among them cost time: the next text takes the lowest free
slot, and where none waits the last ones move down. A text of a higher priority goes first, and may
take the slot of one of a lower priority, which waits then for its turn to come back.

Knows the order of work. Does not know tokens, tensors or time.
"""

from bisect import insort
from collections.abc import Iterator
from itertools import count
from typing import Generic, Literal, TypeVar

__all__ = ["Scheduler", "Work"]

Work = Literal["prefill", "step"]

FULL = 0.75
"""Share of the slots of a step that has to run: below it, texts move down into the holes."""

Text = TypeVar("Text")


class Scheduler(Generic[Text]):
    """Texts by what they do next; each is in one place only.

    Args:
        slots: texts that are computed together, at most.
        prefill_first: whether all prompts are prefilled before the next step, which ends a batch
            soonest. Otherwise prefill and steps take turns, so that a prompt never stops the
            texts that run for longer than one chunk.

    Attributes:
        waiting: the next to get a slot first: by priority, and then by arrival.
        prefilling: by slot.
        running: by slot.
    """

    def __init__(self, slots: int, *, prefill_first: bool = True) -> None:
        self.slots = slots
        self.waiting: list[Text] = []
        self.prefilling: dict[int, Text] = {}
        self.running: dict[int, Text] = {}
        self._prefill_first = prefill_first
        self._last: Work = "step"
        self._arrivals = count()
        self._orders: dict[Text, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Count the texts that have not ended."""
        return len(self.waiting) + len(self.prefilling) + len(self.running)

    def __iter__(self) -> Iterator[Text]:
        """The texts that have not ended."""
        return iter([*self.waiting, *self.prefilling.values(), *self.running.values()])

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return len(self.prefilling) + len(self.running) == self.slots

    def submit(self, text: Text, *, priority: int = 0) -> None:
        """Let a text wait for a slot, ahead of all texts of a lower priority."""
        self._orders[text] = (-priority, next(self._arrivals))
        insort(self.waiting, text, key=self._order)

    def admit(self, text: Text) -> int:
        """Give the lowest free slot, which must be there, to a text that waits."""
        slot = next(self._free())
        self.waiting.remove(text)
        self.prefilling[slot] = text
        return slot

    def outranked(self) -> Text | None:
        """The text to suspend for the one that is next: the last of those of a lower priority."""
        last = max((*self.prefilling.values(), *self.running.values()), key=self._order)
        return last if self._order(last)[0] > self._order(self.waiting[0])[0] else None

    def suspend(self, text: Text) -> int:
        """Let a text wait that has a slot, as early as it did before; gives the slot."""
        slot = self._take(text)
        if slot is None:
            raise ValueError("suspend: expected a text that has a slot")
        insort(self.waiting, text, key=self._order)
        return slot

    def next(self) -> Work | None:
        """What to compute next; `None` when all texts have ended."""
        if self.prefilling and self.running and not self._prefill_first:
            self._last = "prefill" if self._last == "step" else "step"
        elif self.prefilling:
            self._last = "prefill"
        elif self.running:
            self._last = "step"
        else:
            return None
        return self._last

    def next_prompt(self) -> tuple[int, Text]:
        """The slot and the text whose prompt is next; there must be one."""
        return min(self.prefilling.items(), key=lambda item: self._order(item[1]))

    def start(self, slot: int) -> None:
        """A prompt is prefilled: its text runs."""
        self.running[slot] = self.prefilling.pop(slot)

    def finish(self, text: Text) -> int | None:
        """A text has ended; gives the slot that is free now, if it had one."""
        del self._orders[text]
        slot = self._take(text)
        if slot is None:
            self.waiting.remove(text)
        return slot

    def compact(self) -> list[tuple[int, int]]:
        """Move texts that run down into free slots, where too many of a step's slots do not run.

        Returns:
            From which slot to which, in this order.
        """
        if self.waiting or not self.running or len(self.running) > FULL * (1 + max(self.running)):
            return []
        moves = []
        for free in list(self._free()):
            last = max(self.running)
            if free > last:
                break
            self.running[free] = self.running.pop(last)
            moves.append((last, free))
        return moves

    def _order(self, text: Text) -> tuple[int, int]:
        return self._orders[text]

    def _take(self, text: Text) -> int | None:
        """Take a text out of its slot, if it has one."""
        for stage in (self.prefilling, self.running):
            for slot, other in stage.items():
                if other == text:
                    del stage[slot]
                    return slot
        return None

    def _free(self) -> Iterator[int]:
        for slot in range(self.slots):
            if slot not in self.prefilling and slot not in self.running:
                yield slot

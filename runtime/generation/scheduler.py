"""Scheduler: which texts wait, which are prefilled, which run, and in which slot.

A text that is submitted waits for a slot, has its prompt prefilled there, and then takes a token in
each step. It leaves whenever it ends, and its slot goes to the next. A step computes the slots from
the first to the last that runs, so holes among them cost time: the next text takes the lowest free
slot, and where none waits the last ones move down.

Knows the order of work. Does not know tokens, tensors or time.
"""

from collections import deque
from collections.abc import Iterator
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
        waiting: the next to get a slot first.
        prefilling: by slot, the one whose prompt is next first.
        running: by slot.
    """

    def __init__(self, slots: int, *, prefill_first: bool = True) -> None:
        self.slots = slots
        self.waiting: deque[Text] = deque()
        self.prefilling: dict[int, Text] = {}
        self.running: dict[int, Text] = {}
        self._prefill_first = prefill_first
        self._last: Work = "step"

    def __len__(self) -> int:
        """Count the texts that have not ended."""
        return len(self.waiting) + len(self.prefilling) + len(self.running)

    def __iter__(self) -> Iterator[Text]:
        """The texts that have not ended."""
        return iter([*self.waiting, *self.prefilling.values(), *self.running.values()])

    def submit(self, text: Text) -> None:
        """Let a text wait for a slot."""
        self.waiting.append(text)

    def admit(self) -> list[tuple[int, Text]]:
        """Give free slots, the lowest first, to those that have waited longest."""
        admitted = []
        for slot in self._free():
            if not self.waiting:
                break
            self.prefilling[slot] = text = self.waiting.popleft()
            admitted.append((slot, text))
        return admitted

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

    def start(self, slot: int) -> None:
        """A prompt is prefilled: its text runs."""
        self.running[slot] = self.prefilling.pop(slot)

    def finish(self, text: Text) -> int | None:
        """A text has ended; gives the slot that is free now, if it had one."""
        for stage in (self.prefilling, self.running):
            for slot, other in stage.items():
                if other == text:
                    del stage[slot]
                    return slot
        self.waiting.remove(text)
        return None

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

    def _free(self) -> Iterator[int]:
        for slot in range(self.slots):
            if slot not in self.prefilling and slot not in self.running:
                yield slot

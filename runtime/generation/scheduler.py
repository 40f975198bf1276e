"""Scheduler: which sequences wait, prefill or decode, in which slot, and with which states.

    submit ──► waiting ──admit──► prefilling ──start──► running ──leave──►
                  ▲                    │                   │
                  └──────suspend───────┴───────────────────┘

A decode step computes all slots from 0 to the last running one, so gaps cost time: a new sequence
gets the lowest free slot, and when none is waiting, the last ones move down.

A sequence enters when a slot is free and memory suffices for all of its tokens. Higher priorities
go first and may suspend a lower one: its states are copied out of the slot, and back when it has
its turn again, so it continues as if nothing had happened.

Knows slots, memory and the order of work. Does not know logits, prompts' contents or the model.
"""

from bisect import insort
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Literal

from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.request import check_memory

if TYPE_CHECKING:
    from ortolan.runtime.engine.memory_plan import RequestMemory
    from ortolan.runtime.engine.runner import Runner

Round = Literal["prefill", "step"]

FULL = 0.75
"""Share of the slots of a decode step that must be running; below it, sequences move down."""


class Scheduler:
    """Unfinished sequences, each in one place: in the order of their turns, or by slot.

    `revision` increases whenever `running` changes.
    """

    def __init__(
        self, runner: "Runner", memory: "RequestMemory | None", *, prefill_first: bool
    ) -> None:
        self.waiting: list[ActiveSequence] = []
        self.prefilling: dict[int, ActiveSequence] = {}
        self.running: dict[int, ActiveSequence] = {}
        self.revision = 0
        self._runner, self._memory = runner, memory
        self._prefill_first = prefill_first
        self._last: Round = "step"
        self._arrivals = count()
        self._cancellable: list[ActiveSequence] = []

    @property
    def in_slots(self) -> list[ActiveSequence]:
        """Sequences that hold a slot."""
        return [*self.prefilling.values(), *self.running.values()]

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory, in slots or suspended."""
        suspended = sum(one.suspended.length for one in self.waiting if one.suspended is not None)
        return sum(self._runner.slots.lengths) + suspended

    def submit(self, sequence: ActiveSequence, *, priority: int = 0) -> None:
        """Let a sequence wait for a slot."""
        sequence.turn = (-priority, next(self._arrivals))
        insort(self.waiting, sequence, key=_turn)
        if sequence.request.cancelled is not None:
            self._cancellable.append(sequence)

    def restart(self, runner: "Runner") -> None:
        """Let all unfinished sequences begin again, in the empty slots of another runner."""
        unfinished = [one for one in (*self.waiting, *self.in_slots) if not one.is_done]
        self.waiting = sorted(unfinished, key=_turn)
        self.prefilling, self.running = {}, {}
        self.revision += 1
        self._runner = runner
        for sequence in unfinished:
            sequence.restart()

    def cancelled(self) -> list[ActiveSequence]:
        """Unfinished sequences whose `cancelled` now returns true; each is returned once."""
        if not self._cancellable:
            return []
        polled = [one for one in self._cancellable if not one.is_done]
        polls = {id(poll): poll for one in polled if (poll := one.request.cancelled) is not None}
        answers = {key: poll() for key, poll in polls.items()}
        self._cancellable = [one for one in polled if not answers[id(one.request.cancelled)]]
        return [one for one in polled if answers[id(one.request.cancelled)]]

    def admit(self) -> None:
        """Give slots to waiting sequences, as far as slots and memory allow."""
        admitted = []
        while self.waiting:
            sequence, last = self.waiting[0], max(self.in_slots, key=_turn, default=None)
            is_full = len(self.in_slots) == self._runner.slots.count
            if is_full and (last is None or last.turn[0] <= sequence.turn[0]):
                break
            error = self._shortage(sequence)
            if error is not None:
                begun = self._begun()
                if not begun:  # nothing will end and make room
                    sequence.fail(error)
                    self.leave(sequence)
                    continue
                # suspended sequences have their memory, and only need a slot to end
                suspended = [one for one in begun if one.suspended is not None]
                if is_full or not suspended:
                    break
                sequence = suspended[0]
            elif is_full and last is not None:
                self._suspend(last)
            slot = next(self._free())
            self.waiting.remove(sequence)
            self.prefilling[slot] = sequence
            admitted.append((slot, sequence))
        if admitted:
            self._enter(admitted)

    def next(self) -> Round | None:
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

    def next_prompt(self) -> tuple[int, ActiveSequence]:
        """The slot and the sequence to prefill next. There must be one."""
        return min(self.prefilling.items(), key=lambda item: item[1].turn)

    def start(self, slot: int) -> None:
        """Move a sequence from prefilling to running."""
        self.running[slot] = self.prefilling.pop(slot)
        self.revision += 1

    def leave(self, sequence: ActiveSequence) -> None:
        """Remove a sequence that has ended, and free its slot."""
        sequence.suspended = sequence.speculation = None
        slot = self._take(sequence)
        if slot is None:
            self.waiting.remove(sequence)
            return
        self._runner.slots.release(slot)
        self._compact()

    def _compact(self) -> None:
        """Move running sequences down into free slots if a decode step has too many gaps."""
        if self.waiting or not self.running or len(self.running) > FULL * (1 + max(self.running)):
            return
        for free in list(self._free()):
            last = max(self.running)
            if free > last:
                break
            self.running[free] = self.running.pop(last)
            self._runner.slots.move(last, free)
        self.revision += 1

    def _enter(self, admitted: list[tuple[int, ActiveSequence]]) -> None:
        """Make room in the slots, and restore the states of suspended sequences."""
        runner = self._runner
        longest = max(len(sequence.request.prompt) for _, sequence in admitted)
        # one more: a step writes a token after the valid part of an idle row, too
        runner.reserve(min(longest + 1, runner.slots.context_length))
        beams = runner.slots.beams
        for slot, sequence in admitted:
            sequence.enter()
            runner.slots.adapters[slot * beams : (slot + 1) * beams] = sequence.request.adapter
            snapshot, sequence.suspended = sequence.suspended, None
            if snapshot is not None:
                runner.restore(snapshot, row=slot)
                if snapshot.length >= len(sequence.request.prompt):
                    self.start(slot)

    def _suspend(self, sequence: ActiveSequence) -> None:
        slot = self._take(sequence)
        insort(self.waiting, sequence, key=_turn)
        if slot is not None:
            sequence.suspended = self._runner.slots.snapshot(row=slot)
            self._runner.slots.release(slot)

    def _begun(self) -> list[ActiveSequence]:
        """Sequences that memory is planned for: those in slots, and suspended ones."""
        return [*self.in_slots, *(one for one in self.waiting if one.suspended is not None)]

    def _shortage(self, sequence: ActiveSequence) -> MemoryPlanError | None:
        """The error if a waiting sequence does not fit next to those that have begun."""
        if self._memory is None or sequence.suspended is not None:
            return None
        requests = [one.request for one in (*self._begun(), sequence)]
        try:
            check_memory(self._memory, requests, whole=True, held_tokens=self.held_tokens)
        except MemoryPlanError as error:
            return error
        return None

    def _take(self, sequence: ActiveSequence) -> int | None:
        """Remove a sequence from its slot, if it has one."""
        for stage in (self.prefilling, self.running):
            for slot, other in stage.items():
                if other is sequence:
                    del stage[slot]
                    self.revision += 1
                    return slot
        return None

    def _free(self) -> Iterator[int]:
        for slot in range(self._runner.slots.count):
            if slot not in self.prefilling and slot not in self.running:
                yield slot


def _turn(sequence: ActiveSequence) -> tuple[int, int]:
    return sequence.turn

"""Admission: which sequences hold a slot, and their states while they do not.

A waiting sequence enters a slot when one is free and memory suffices for all of its tokens. A
sequence of higher priority may suspend a running one: its states are copied out of the slot, and
copied back when it has its turn again, so it continues as if nothing had happened.

Knows slots, memory and states. Does not know logits, prompts' contents or the model.
"""

from typing import TYPE_CHECKING

from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.request import check_memory
from ortolan.runtime.generation.scheduler import Scheduler

if TYPE_CHECKING:
    from ortolan.runtime.engine.buffers import Snapshot
    from ortolan.runtime.engine.memory_plan import RequestMemory
    from ortolan.runtime.engine.runner import Runner


class Admission:
    """Lets sequences into slots and out of them."""

    def __init__(
        self,
        runner: "Runner",
        scheduler: Scheduler[ActiveSequence],
        memory: "RequestMemory | None",
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._memory = memory
        self._cancellable: list[ActiveSequence] = []
        self._suspended: dict[ActiveSequence, Snapshot] = {}

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory, in slots or suspended."""
        suspended = sum(snapshot.length for snapshot in self._suspended.values())
        return sum(self._runner.slots.lengths) + suspended

    def submit(self, sequence: ActiveSequence, *, priority: int) -> None:
        """Let a sequence wait for a slot."""
        self._scheduler.submit(sequence, priority=priority)
        if sequence.request.cancelled is not None:
            self._cancellable.append(sequence)

    def cancelled(self) -> list[ActiveSequence]:
        """Unfinished sequences whose `cancelled` now returns true; each is returned once."""
        if not self._cancellable:
            return []
        answers: dict[int, bool] = {}  # by identity: not every callable can be hashed
        cancelled = []
        for sequence in list(self._cancellable):
            poll = sequence.request.cancelled
            if sequence.finish_reason is not None or poll is None:
                self._cancellable.remove(sequence)
                continue
            if id(poll) not in answers:
                answers[id(poll)] = poll()
            if answers[id(poll)]:
                self._cancellable.remove(sequence)
                cancelled.append(sequence)
        return cancelled

    def admit(self) -> None:
        """Give slots to waiting sequences, as far as slots and memory allow."""
        scheduler, admitted = self._scheduler, []
        while scheduler.waiting:
            sequence = scheduler.waiting[0]
            outranked = scheduler.outranked() if scheduler.is_full else None
            if scheduler.is_full and outranked is None:
                break
            error = self._shortage(sequence)
            if error is not None:
                begun = self._begun()
                if not begun:  # nothing will end and make room
                    sequence.fail(error)
                    self.leave(sequence)
                    continue
                # suspended sequences have their memory, and only need a slot to end
                suspended = [other for other in begun if other in self._suspended]
                if scheduler.is_full or not suspended:
                    break
                sequence = suspended[0]
            elif outranked is not None:
                self._suspend(outranked)
            admitted.append((scheduler.admit(sequence), sequence))
        if admitted:
            self._enter(admitted)

    def leave(self, sequence: ActiveSequence) -> None:
        """Remove a sequence that has ended, and free its slot."""
        slot = self._scheduler.finish(sequence)
        self._suspended.pop(sequence, None)
        if slot is not None:
            self._runner.slots.release(slot)
            for last, free in self._scheduler.compact():
                self._runner.slots.move(last, free)

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
            snapshot = self._suspended.pop(sequence, None)
            if snapshot is not None:
                runner.restore(snapshot, row=slot)
                if snapshot.length >= len(sequence.request.prompt):
                    self._scheduler.start(slot)

    def _begun(self) -> list[ActiveSequence]:
        """Sequences that memory is planned for: those in slots, and suspended ones."""
        scheduler = self._scheduler
        suspended = [other for other in scheduler.waiting if other in self._suspended]
        return [*scheduler.prefilling.values(), *scheduler.running.values(), *suspended]

    def _shortage(self, sequence: ActiveSequence) -> MemoryPlanError | None:
        """The error if a waiting sequence does not fit next to those that have begun."""
        if self._memory is None or sequence in self._suspended:
            return None
        requests = [other.request for other in (*self._begun(), sequence)]
        try:
            check_memory(self._memory, requests, whole=True, held_tokens=self.held_tokens)
        except MemoryPlanError as error:
            return error
        return None

    def _suspend(self, sequence: ActiveSequence) -> None:
        slot = self._scheduler.suspend(sequence)
        self._suspended[sequence] = self._runner.slots.snapshot(row=slot)
        self._runner.slots.release(slot)

"""The scheduler alone: sequences are letters, slots are numbers, time is counted."""

import random
from typing import Any

import pytest

from ortolan.runtime.generation.scheduler import Scheduler


def scheduler(slots: int, letters: str, *, prefill_first: bool = True) -> Scheduler[str]:
    queue: Scheduler[str] = Scheduler(slots, prefill_first=prefill_first)
    for letter in letters:
        queue.submit(letter)
    return queue


def admit(scheduler: Scheduler[Any]) -> list[tuple[int, Any]]:
    """Give away all free slots."""
    admitted = []
    while scheduler.waiting and not scheduler.is_full:
        first = scheduler.waiting[0]
        admitted.append((scheduler.admit(first), first))
    return admitted


def test_the_lowest_free_slot_goes_to_the_one_that_waited_longest() -> None:
    queue = scheduler(3, "abcde")
    assert admit(queue) == [(0, "a"), (1, "b"), (2, "c")]
    for slot in range(3):
        queue.start(slot)
    assert queue.finish("b") == 1
    assert queue.finish("a") == 0
    assert admit(queue) == [(0, "d"), (1, "e")]
    assert admit(queue) == []


def test_prefills_come_before_steps_in_a_batch() -> None:
    queue = scheduler(2, "ab")
    assert queue.next() is None
    admit(queue)
    assert queue.next() == "prefill"
    queue.start(0)
    assert [queue.next(), queue.next()] == ["prefill", "prefill"]
    queue.start(1)
    assert [queue.next(), queue.next()] == ["step", "step"]


def test_prefills_and_steps_alternate_in_a_service() -> None:
    queue = scheduler(2, "ab", prefill_first=False)
    admit(queue)
    assert queue.next() == "prefill"
    queue.start(0)
    assert [queue.next() for _ in range(4)] == ["step", "prefill", "step", "prefill"]
    queue.finish("a")
    assert [queue.next(), queue.next()] == ["prefill", "prefill"]


def test_a_sequence_may_end_anywhere() -> None:
    queue = scheduler(2, "abc")
    admit(queue)
    queue.start(0)
    revision = queue.revision
    assert [queue.finish(letter) for letter in "cba"] == [None, 1, 0]
    assert queue.revision > revision
    assert len(queue) == 0
    assert queue.next() is None


def test_priority_goes_before_arrival() -> None:
    queue = scheduler(1, "ab")
    for letter, priority in (("c", 2), ("d", 1), ("e", 2), ("f", -1)):
        queue.submit(letter, priority=priority)
    assert queue.waiting == ["c", "e", "d", "a", "b", "f"]
    queue = scheduler(3, "ab")
    queue.submit("c", priority=1)
    admit(queue)
    assert queue.next_prompt() == (0, "c"), "whatever its slot"
    queue.start(0)
    assert queue.next_prompt() == (1, "a")


def test_the_last_sequence_of_the_lowest_priority_is_suspended() -> None:
    queue = scheduler(3, "abc")
    admit(queue)
    queue.start(0)
    queue.submit("d")
    assert queue.outranked() is None, "equal priorities wait"
    queue.submit("e", priority=1)
    assert queue.outranked() == "c"
    assert queue.suspend("c") == 2
    assert queue.waiting == ["e", "c", "d"], "it returns before those that came later"
    assert queue.admit("e") == 2
    assert queue.outranked() is None
    with pytest.raises(ValueError, match="no slot"):
        queue.suspend("d")


def test_the_last_sequences_move_into_gaps_when_none_waits() -> None:
    queue = scheduler(8, "abcdefgh")
    admit(queue)
    for slot in range(8):
        queue.start(slot)
    queue.finish("b")
    assert queue.compact() == [], "one gap in eight is not worth a move"
    queue.finish("a")
    revision = queue.revision
    assert queue.compact() == [(7, 0), (6, 1)]
    assert queue.running == {0: "h", 1: "g", 2: "c", 3: "d", 4: "e", 5: "f"}
    assert queue.revision > revision


def test_no_sequence_moves_while_others_wait_or_without_gaps() -> None:
    queue = scheduler(2, "abc")
    admit(queue)
    queue.start(0)
    queue.start(1)
    queue.finish("a")
    assert queue.compact() == []
    admit(queue)
    queue.finish("c")
    assert queue.compact() == [(1, 0)]
    assert queue.compact() == []


@pytest.mark.parametrize("prefill_first", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_has_its_turn_and_none_waits_too_long(
    prefill_first: bool, seed: int
) -> None:
    """A chunk takes 10, a step 1 and 0.5 more per slot."""
    draw, slots = random.Random(seed), 4
    prompts = {number: draw.randint(1, 6) for number in range(30)}
    tokens = {number: draw.randint(1, 20) for number in range(30)}
    queue: Scheduler[int] = Scheduler(slots, prefill_first=prefill_first)
    now, admitted, last_token, gaps = 0.0, [], {}, []
    for number in prompts:
        queue.submit(number)
    while len(queue):
        admitted += [number for _, number in admit(queue)]
        assert len({*queue.prefilling} & {*queue.running}) == 0
        assert len(queue.prefilling) + len(queue.running) <= slots
        if queue.next() == "prefill":
            now += 10
            slot, number = queue.next_prompt()
            prompts[number] -= 1
            if prompts[number] == 0:
                queue.start(slot)
                last_token[number] = now
        else:
            now += 1 + 0.5 * (max(queue.running) + 1)
            for number in list(queue.running.values()):
                gaps.append(now - last_token[number])
                last_token[number] = now
                tokens[number] -= 1
                if tokens[number] == 0:
                    queue.finish(number)
                    for last, free in queue.compact():
                        assert last > free
    assert admitted == list(range(30))
    assert set(tokens.values()) == {0}
    # a running sequence waits for one chunk and one step at most
    assert prefill_first or max(gaps) <= 10 + 1 + 0.5 * slots

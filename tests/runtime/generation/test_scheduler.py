"""The scheduler alone: sequences are letters, slots are numbers, time is counted."""

import random
from typing import Any

import pytest

from ortolan.runtime.generation.scheduler import Scheduler


def scheduler(slots: int, letters: str, *, prefill_first: bool = True) -> Scheduler[str]:
    made: Scheduler[str] = Scheduler(slots, prefill_first=prefill_first)
    for letter in letters:
        made.submit(letter)
    return made


def admit(scheduler: Scheduler[Any]) -> list[tuple[int, Any]]:
    """Give away all free slots."""
    admitted = []
    while scheduler.waiting and not scheduler.is_full:
        first = scheduler.waiting[0]
        admitted.append((scheduler.admit(first), first))
    return admitted


def test_the_lowest_free_slot_goes_to_the_one_that_waited_longest() -> None:
    made = scheduler(3, "abcde")
    assert admit(made) == [(0, "a"), (1, "b"), (2, "c")]
    for slot in range(3):
        made.start(slot)
    assert made.finish("b") == 1
    assert made.finish("a") == 0
    assert admit(made) == [(0, "d"), (1, "e")]
    assert admit(made) == []


def test_prefills_come_before_steps_in_a_batch() -> None:
    made = scheduler(2, "ab")
    assert made.next() is None
    admit(made)
    assert made.next() == "prefill"
    made.start(0)
    assert [made.next(), made.next()] == ["prefill", "prefill"]
    made.start(1)
    assert [made.next(), made.next()] == ["step", "step"]


def test_prefills_and_steps_alternate_in_a_service() -> None:
    made = scheduler(2, "ab", prefill_first=False)
    admit(made)
    assert made.next() == "prefill"
    made.start(0)
    assert [made.next() for _ in range(4)] == ["step", "prefill", "step", "prefill"]
    made.finish("a")
    assert [made.next(), made.next()] == ["prefill", "prefill"]


def test_a_sequence_may_end_anywhere() -> None:
    made = scheduler(2, "abc")
    admit(made)
    made.start(0)
    revision = made.revision
    assert [made.finish(letter) for letter in "cba"] == [None, 1, 0]
    assert made.revision > revision
    assert len(made) == 0
    assert made.next() is None


def test_priority_goes_before_arrival() -> None:
    made = scheduler(1, "ab")
    for letter, priority in (("c", 2), ("d", 1), ("e", 2), ("f", -1)):
        made.submit(letter, priority=priority)
    assert made.waiting == ["c", "e", "d", "a", "b", "f"]
    made = scheduler(3, "ab")
    made.submit("c", priority=1)
    admit(made)
    assert made.next_prompt() == (0, "c"), "whatever its slot"
    made.start(0)
    assert made.next_prompt() == (1, "a")


def test_the_last_sequence_of_the_lowest_priority_is_suspended() -> None:
    made = scheduler(3, "abc")
    admit(made)
    made.start(0)
    made.submit("d")
    assert made.outranked() is None, "equal priorities wait"
    made.submit("e", priority=1)
    assert made.outranked() == "c"
    assert made.suspend("c") == 2
    assert made.waiting == ["e", "c", "d"], "it returns before those that came later"
    assert made.admit("e") == 2
    assert made.outranked() is None
    with pytest.raises(ValueError, match="no slot"):
        made.suspend("d")


def test_the_last_sequences_move_into_gaps_when_none_waits() -> None:
    made = scheduler(8, "abcdefgh")
    admit(made)
    for slot in range(8):
        made.start(slot)
    made.finish("b")
    assert made.compact() == [], "one gap in eight is not worth a move"
    made.finish("a")
    revision = made.revision
    assert made.compact() == [(7, 0), (6, 1)]
    assert made.running == {0: "h", 1: "g", 2: "c", 3: "d", 4: "e", 5: "f"}
    assert made.revision > revision


def test_no_sequence_moves_while_others_wait_or_without_gaps() -> None:
    made = scheduler(2, "abc")
    admit(made)
    made.start(0)
    made.start(1)
    made.finish("a")
    assert made.compact() == []
    admit(made)
    made.finish("c")
    assert made.compact() == [(1, 0)]
    assert made.compact() == []


@pytest.mark.parametrize("prefill_first", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_has_its_turn_and_none_waits_too_long(
    prefill_first: bool, seed: int
) -> None:
    """A chunk takes 10, a step 1 and 0.5 more per slot."""
    draw, slots = random.Random(seed), 4
    prompts = {number: draw.randint(1, 6) for number in range(30)}
    tokens = {number: draw.randint(1, 20) for number in range(30)}
    made: Scheduler[int] = Scheduler(slots, prefill_first=prefill_first)
    now, admitted, last_token, gaps = 0.0, [], {}, []
    for number in prompts:
        made.submit(number)
    while len(made):
        admitted += [number for _, number in admit(made)]
        assert len({*made.prefilling} & {*made.running}) == 0
        assert len(made.prefilling) + len(made.running) <= slots
        if made.next() == "prefill":
            now += 10
            slot, number = made.next_prompt()
            prompts[number] -= 1
            if prompts[number] == 0:
                made.start(slot)
                last_token[number] = now
        else:
            now += 1 + 0.5 * (max(made.running) + 1)
            for number in list(made.running.values()):
                gaps.append(now - last_token[number])
                last_token[number] = now
                tokens[number] -= 1
                if tokens[number] == 0:
                    made.finish(number)
                    for last, free in made.compact():
                        assert last > free
    assert admitted == list(range(30))
    assert set(tokens.values()) == {0}
    # a running sequence waits for one chunk and one step at most
    assert prefill_first or max(gaps) <= 10 + 1 + 0.5 * slots

import random
from typing import Any

import pytest

from ortolan.runtime.generation.scheduler import Scheduler


def scheduler(slots: int, texts: str, *, prefill_first: bool = True) -> Scheduler[str]:
    made: Scheduler[str] = Scheduler(slots, prefill_first=prefill_first)
    for text in texts:
        made.submit(text)
    return made


def admit(scheduler: Scheduler[Any]) -> list[tuple[int, Any]]:
    """Give all free slots away."""
    admitted = []
    while scheduler.waiting and not scheduler.is_full:
        text = scheduler.waiting[0]
        admitted.append((scheduler.admit(text), text))
    return admitted


def test_free_slots_go_to_those_that_have_waited_longest_the_lowest_first() -> None:
    made = scheduler(3, "abcde")
    assert admit(made) == [(0, "a"), (1, "b"), (2, "c")]
    for slot in range(3):
        made.start(slot)
    assert made.finish("b") == 1
    assert made.finish("a") == 0
    assert admit(made) == [(0, "d"), (1, "e")]
    assert admit(made) == []


def test_prompts_come_before_steps_where_a_batch_is_to_end_soonest() -> None:
    made = scheduler(2, "ab")
    assert made.next() is None
    admit(made)
    assert made.next() == "prefill"
    made.start(0)
    assert [made.next(), made.next()] == ["prefill", "prefill"]
    made.start(1)
    assert [made.next(), made.next()] == ["step", "step"]


def test_prompts_and_steps_take_turns_where_nobody_is_to_wait() -> None:
    made = scheduler(2, "ab", prefill_first=False)
    admit(made)
    assert made.next() == "prefill"
    made.start(0)
    assert [made.next() for _ in range(4)] == ["step", "prefill", "step", "prefill"]
    made.finish("a")
    assert [made.next(), made.next()] == ["prefill", "prefill"]


def test_a_text_may_end_wherever_it_is() -> None:
    made = scheduler(2, "abc")
    admit(made)
    made.start(0)
    assert [made.finish(text) for text in "cba"] == [None, 1, 0]
    assert len(made) == 0
    assert made.next() is None


def test_a_higher_priority_goes_first_and_equal_ones_go_in_the_order_of_arrival() -> None:
    made = scheduler(1, "ab")
    for text, priority in (("c", 2), ("d", 1), ("e", 2), ("f", -1)):
        made.submit(text, priority=priority)
    assert made.waiting == ["c", "e", "d", "a", "b", "f"]


def test_a_prompt_of_a_higher_priority_is_next_whatever_its_slot() -> None:
    made = scheduler(3, "ab")
    made.submit("c", priority=1)
    admit(made)
    assert made.next_prompt() == (0, "c")
    made.start(0)
    assert made.next_prompt() == (1, "a")


def test_the_last_text_of_the_lowest_priority_gives_its_slot_to_a_higher_one() -> None:
    made = scheduler(3, "abc")
    admit(made)
    made.start(0)
    made.submit("d")
    assert made.outranked() is None, "an equal one waits"
    made.submit("e", priority=1)
    assert made.outranked() == "c"
    assert made.suspend("c") == 2
    assert made.waiting == ["e", "c", "d"], "it comes back ahead of those that came later"
    assert made.admit("e") == 2
    assert made.outranked() is None


def test_the_last_texts_move_into_holes_where_nobody_waits() -> None:
    made = scheduler(8, "abcdefgh")
    admit(made)
    for slot in range(8):
        made.start(slot)
    made.finish("b")
    assert made.compact() == [], "one hole in eight is not worth a move"
    made.finish("a")
    assert made.compact() == [(7, 0), (6, 1)]
    assert made.running == {0: "h", 1: "g", 2: "c", 3: "d", 4: "e", 5: "f"}


def test_no_text_moves_while_others_wait_or_where_there_is_no_hole() -> None:
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
def test_every_text_is_served_in_turn_and_none_waits_too_long(
    prefill_first: bool, seed: int
) -> None:
    """A clock that is not real: a chunk takes 10, a step 1 and 0.5 more for each slot of it."""
    draw, slots = random.Random(seed), 4
    prompts = {text: draw.randint(1, 6) for text in range(30)}
    tokens = {text: draw.randint(1, 20) for text in range(30)}
    made: Scheduler[int] = Scheduler(slots, prefill_first=prefill_first)
    now, admitted, last_token, gaps = 0.0, [], {}, []
    for text in prompts:
        made.submit(text)
    while len(made):
        admitted += [text for _, text in admit(made)]
        assert len({*made.prefilling} & {*made.running}) == 0
        assert len(made.prefilling) + len(made.running) <= slots
        if made.next() == "prefill":
            now += 10
            slot, text = made.next_prompt()
            prompts[text] -= 1
            if prompts[text] == 0:
                made.start(slot)
                last_token[text] = now
        else:
            now += 1 + 0.5 * (max(made.running) + 1)
            for text in list(made.running.values()):
                gaps.append(now - last_token[text])
                last_token[text] = now
                tokens[text] -= 1
                if tokens[text] == 0:
                    made.finish(text)
                    for last, free in made.compact():
                        assert last > free
    assert admitted == list(range(30))
    assert set(tokens.values()) == {0}
    # beside a prompt a text waits for one chunk and one step, however long the prompt is
    assert prefill_first or max(gaps) <= 10 + 1 + 0.5 * slots

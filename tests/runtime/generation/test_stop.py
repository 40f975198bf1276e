import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.stop import StopMatcher
from ortolan.runtime.limits import MAX_STOP_TEXT_BYTES, MAX_STOP_TEXTS

LETTERS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def naive(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What is shown of a text that comes a character at a time, and whether it was stopped."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def held_back(text: str, stops: Sequence[str]) -> int:
    """The longest end of a text that begins a stop text."""
    begun = {stop[:size] for stop in stops for size in range(1, len(stop))}
    return max((len(start) for start in begun if text.endswith(start)), default=0)


def splits(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    cuts = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=500, deadline=None)
@given(text=LETTERS, stops=STOPS, seed=st.integers(0, 10_000))
def test_result_equals_the_naive_search_for_any_split(
    text: str, stops: list[str], seed: int
) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    is_stopped = False
    seen = ""
    for piece in splits(text, seed):
        emitted, is_stopped = matcher.push(piece)
        shown += emitted
        seen += piece
        assert is_stopped == naive(seen, stops)[1]
        if not is_stopped:
            assert len(seen) - len(shown) == held_back(seen, stops)
    shown += matcher.flush()
    assert (shown, is_stopped) == naive(text, stops)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30), stops=st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_any_characters_are_compared_as_they_are(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted, is_stopped = matcher.push(text)
    assert (emitted + matcher.flush(), is_stopped) == naive(text, stops)


def test_text_that_may_become_a_stop_text_is_held_until_it_cannot() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a##") == ("a", False)
    assert matcher.push("b#") == ("##b", False)
    assert matcher.push("##") == ("", True)


def test_text_held_at_the_end_comes_with_flush() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("theEN") == ("the", False)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""
    assert matcher.push("D") == ("D", False)


def test_text_before_a_stop_inside_a_piece_is_shown_and_the_rest_is_not() -> None:
    assert StopMatcher(["\n\n"]).push("one\n\ntwo") == ("one", True)


def test_nothing_is_shown_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    matcher.push("ax")
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_stop_text_that_ends_first_wins_and_the_longest_of_several() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abcd") == ("a", True)
    assert StopMatcher(["c", "abc", "bc"]).push("abc") == ("", True)


def test_without_stop_texts_everything_passes_at_once() -> None:
    matcher = StopMatcher(())
    assert matcher.push("text") == ("text", False)
    assert matcher.flush() == ""


def test_longest_stop_texts_are_followed_at_once() -> None:
    # all begin with what comes: comparing every beginning anew would take minutes
    stops = ["a" * (MAX_STOP_TEXT_BYTES - 1) + letter for letter in "bcdefghijklmnopq"]
    matcher = StopMatcher(stops)
    text = "a" * 3000
    assert "".join(matcher.push(letter)[0] for letter in text) == text[: 3000 - 1023]
    assert matcher.push("q") == ("", True)


@pytest.mark.parametrize("texts", ["stop", [b"stop"], [None], [5]])
def test_what_is_no_list_of_texts_is_refused(texts: Any) -> None:
    with pytest.raises(InputError, match="stop must be"):
        StopMatcher(texts)


def test_stop_texts_are_taken_up_to_their_number_and_refused_beyond() -> None:
    StopMatcher(["a"] * MAX_STOP_TEXTS)
    with pytest.raises(InputError, match="16"):
        StopMatcher(["a"] * (MAX_STOP_TEXTS + 1))


@pytest.mark.parametrize("letter", ["a", "é", "🙂"])
def test_stop_text_is_taken_up_to_its_size_in_bytes_and_refused_beyond(letter: str) -> None:
    most = MAX_STOP_TEXT_BYTES // len(letter.encode())
    matcher = StopMatcher([letter * most])
    assert matcher.push(letter * most) == ("", True)
    with pytest.raises(InputError, match="1 to 1024 bytes"):
        StopMatcher([letter * (most + 1)])


def test_empty_stop_text_is_refused() -> None:
    with pytest.raises(InputError, match="1024"):
        StopMatcher(["a", ""])

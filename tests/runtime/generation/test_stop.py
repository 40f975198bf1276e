import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime.generation.stop import StopMatcher, checked_stop
from ortolan.runtime.limits import MAX_STOP_TEXT_BYTES, MAX_STOP_TEXTS

LETTERS = st.text("ab", max_size=40) | st.text(max_size=20)
STOPS = st.lists(
    st.text("ab", min_size=1, max_size=6) | st.text(min_size=1, max_size=2), max_size=4
)


def naive(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What is shown of a text that arrives a character at a time, and whether it was stopped."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of a text that begins a stop text."""
    starts = {stop[:size] for stop in stops for size in range(1, len(stop))}
    return max((len(start) for start in starts if text.endswith(start)), default=0)


def splits(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    cuts = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(text=LETTERS, stops=STOPS, seed=st.integers(0, 10_000))
def test_result_equals_the_naive_search_for_any_split(
    text: str, stops: list[str], seed: int
) -> None:
    matcher = StopMatcher(stops)
    shown = seen = ""
    is_stopped = False
    for piece in splits(text, seed):
        emitted, is_stopped = matcher.push(piece)
        shown += emitted
        seen += piece
        assert is_stopped == naive(seen, stops)[1]
        if not is_stopped:
            assert len(seen) - len(shown) == held_back(seen, stops)
    shown += matcher.flush()
    assert (shown, is_stopped) == naive(text, stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "rest"),
    [
        (["###"], ["a##", "b#", "##"], [("a", False), ("##b", False), ("", True)], ""),
        (["END"], ["theEN"], [("the", False)], "EN"),
        (["\n\n"], ["one\n\ntwo"], [("one", True)], ""),
        (["x"], ["ax", "more"], [("a", True), ("", True)], ""),
        (["abcd", "bc"], ["abcd"], [("a", True)], ""),
        (["c", "abc", "bc"], ["abc"], [("", True)], ""),
        ([], ["text"], [("text", False)], ""),
    ],
)
def test_pieces(
    stops: list[str], pieces: list[str], expected: list[tuple[str, bool]], rest: str
) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece) for piece in pieces] == expected
    assert [matcher.flush(), matcher.flush()] == [rest, ""]


def test_long_stop_texts_are_matched_in_linear_time() -> None:
    # all begin with the text: comparing each beginning anew would take minutes
    stops = ["a" * (MAX_STOP_TEXT_BYTES - 1) + letter for letter in "bcdefghijklmnopq"]
    matcher = StopMatcher(stops)
    text = "a" * 3000
    assert "".join(matcher.push(letter)[0] for letter in text) == text[: 3000 - 1023]
    assert matcher.push("q") == ("", True)


INVALID: dict[str, Any] = {
    "text": "stop",
    "bytes": [b"stop"],
    "nothing": [None],
    "number": [5],
    "many": ["a"] * (MAX_STOP_TEXTS + 1),
    "empty": ["a", ""],
    "long": ["é" * (MAX_STOP_TEXT_BYTES // 2 + 1)],
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_stop_texts_are_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: checked_stop(INVALID[name])) == snapshot


@pytest.mark.parametrize("letter", ["a", "é", "🙂"])
def test_stop_texts_of_the_most_bytes_are_matched(letter: str) -> None:
    longest = letter * (MAX_STOP_TEXT_BYTES // len(letter.encode()))
    assert StopMatcher([longest] * MAX_STOP_TEXTS).push(longest) == ("", True)

import pytest

from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.drafts import SIZES, DraftModel, Pace, PromptLookup


@pytest.mark.parametrize(
    ("prompt", "most", "expected"),
    [
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], 4, [4, 5, 6, 7], id="match"),
        pytest.param([1, 2, 3, 7, 7, 1, 2, 3, 8, 8, 1, 2, 3], 2, [8, 8], id="latest"),
        pytest.param([9, 9, 1, 2, 7, 0, 0, 1, 2, 8, 9, 9, 1, 2], 1, [7], id="longest"),
        pytest.param([5, 1, 2, 1, 2, 1, 2, 1], 5, [2, 1, 2, 1, 2], id="repetition"),
        pytest.param([1, 2, 3, 4, 5], 4, [], id="nothing"),
        pytest.param([1, 2, 3, 4, 5, 1, 6], 4, [], id="no longer"),
        pytest.param([1, 2, 3, 4, 5, 2], 4, [3], id="one token proposes one"),
        pytest.param([1, 2, 3, 4, 5, 2], 0, [], id="none wanted"),
    ],
)
def test_lookup_proposes_what_followed_the_last_tokens(
    prompt: list[int], most: int, expected: list[int]
) -> None:
    assert PromptLookup().begin(prompt).propose(most) == expected


@pytest.mark.parametrize("cuts", [[11], [1, 10], [4, 4, 3], [1] * 11])
def test_lookup_does_not_depend_on_how_tokens_arrive(cuts: list[int]) -> None:
    tokens, start = [1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3], 0
    drafter = PromptLookup().begin([])
    for size in cuts:
        drafter.extend(tokens[start : start + size])
        start += size
    assert drafter.propose(2) == [9, 1]


def test_a_draft_model_must_be_a_decoder() -> None:
    with pytest.raises(InputError, match="got str"):
        DraftModel("bundle")


# --- lengths of drafts ------------------------------------------------------------------------


def paced(rights: list[int], *, draft_s: float = 0) -> int:
    """The length after drafts of one token, checked in calls of two that take a second."""
    pace = Pace()
    for right in rights:
        pace.learn(drafted=1, right=right, draft_s=draft_s, size=2, seconds=1.0)
    return pace.choose()


def test_drafts_grow_while_they_are_right() -> None:
    assert paced([]) == 1, "the second token of a call is free"
    assert paced([1] * 30) >= 11
    assert paced([0] * 30) == 1
    assert paced([0] * 30 + [1] * 30) > 1
    assert paced([1] * 5, draft_s=2.0) < paced([1] * 5), "slow guesses must be right more often"


def test_a_size_that_was_slow_is_avoided() -> None:
    pace = Pace()
    for _ in range(30):
        for size in SIZES:
            seconds = 1.0 if size == 2 else 1.0 * size
            pace.learn(drafted=size - 1, right=size - 1, draft_s=0, size=size, seconds=seconds)
    assert pace.choose() == 1

import pytest

from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.drafts import DraftModel, PromptLookup


def test_what_followed_the_same_tokens_is_proposed() -> None:
    drafter = PromptLookup().begin([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    assert drafter.propose(4) == [4, 5, 6, 7]


def test_the_latest_of_several_places_is_proposed() -> None:
    drafter = PromptLookup().begin([1, 2, 3, 7, 7, 1, 2, 3, 8, 8, 1, 2, 3])
    assert drafter.propose(2) == [8, 8]


def test_a_longer_match_goes_before_a_later_one() -> None:
    drafter = PromptLookup().begin([9, 9, 1, 2, 7, 0, 0, 1, 2, 8, 9, 9, 1, 2])
    assert drafter.propose(1) == [7]


def test_a_repetition_is_continued_beyond_the_end() -> None:
    drafter = PromptLookup().begin([5, 1, 2, 1, 2, 1, 2, 1])
    assert drafter.propose(5) == [2, 1, 2, 1, 2]


def test_nothing_is_proposed_where_nothing_was_seen_before() -> None:
    drafter = PromptLookup().begin([1, 2, 3, 4, 5])
    assert drafter.propose(4) == []
    drafter.extend([1, 6])
    assert drafter.propose(4) == []


def test_a_match_of_one_token_proposes_one() -> None:
    drafter = PromptLookup().begin([1, 2, 3, 4, 5, 2])
    assert drafter.propose(4) == [3]
    assert drafter.propose(0) == []


@pytest.mark.parametrize("cuts", [[11], [1, 10], [4, 4, 3], [1] * 11])
def test_proposals_do_not_depend_on_how_tokens_came(cuts: list[int]) -> None:
    tokens, start = [1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3], 0
    drafter = PromptLookup().begin([])
    for size in cuts:
        drafter.extend(tokens[start : start + size])
        start += size
    assert drafter.propose(2) == [9, 1]


def test_a_draft_model_has_to_be_a_decoder() -> None:
    with pytest.raises(InputError, match="got str"):
        DraftModel("bundle")

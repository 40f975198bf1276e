from ortolan.runtime.generation.pace import SIZES, Pace


def paced(*, right: int, drafted: int, times: int, seconds: float = 1.0, draft_s: float = 0) -> int:
    """The length that is chosen after so many equal drafts, checked in calls as long as steps."""
    pace = Pace()
    for _ in range(times):
        pace.learn(drafted=drafted, right=right, draft_s=draft_s, size=2, seconds=seconds)
    return pace.choose()


def test_the_first_draft_is_what_costs_nothing() -> None:
    assert Pace().choose() == 1


def test_drafts_that_are_right_become_long() -> None:
    assert paced(right=1, drafted=1, times=30) >= 11


def test_drafts_that_are_wrong_stay_short() -> None:
    assert paced(right=0, drafted=1, times=30) == 1


def test_slow_guesses_have_to_be_right_more_often() -> None:
    quick = paced(right=1, drafted=1, times=5)
    assert paced(right=1, drafted=1, times=5, draft_s=2.0) < quick


def test_a_size_that_was_slow_is_avoided() -> None:
    pace = Pace()
    for _ in range(30):
        pace.learn(drafted=1, right=1, draft_s=0, size=2, seconds=1.0)
        for size in SIZES[1:]:
            pace.learn(drafted=size - 1, right=size - 1, draft_s=0, size=size, seconds=1.0 * size)
    assert pace.choose() == 1


def test_after_wrong_drafts_right_ones_make_it_go_on() -> None:
    pace = Pace()
    for right in [0] * 30 + [1] * 30:
        pace.learn(drafted=1, right=right, draft_s=0, size=2, seconds=1.0)
    assert pace.choose() > 1

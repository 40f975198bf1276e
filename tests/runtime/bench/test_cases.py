from collections.abc import Sequence

import pytest

from ortolan.runtime.bench.cases import Case, cases, check_context
from ortolan.runtime.errors import ContextLengthError, InputError


def test_names_are_those_of_llama_bench() -> None:
    assert Case(kind="pp", tokens=512).name == "pp512"
    assert Case(kind="tg", tokens=128, depth=1024).name == "tg128 @ d1024"


def test_cases_go_through_depths_and_then_kinds() -> None:
    names = [case.name for case in cases([8, 16], [4], [0, 32])]
    assert names == ["pp8", "pp16", "tg4", "pp8 @ d32", "pp16 @ d32", "tg4 @ d32"]


def test_zero_stands_for_none_and_repeated_cases_count_once() -> None:
    assert [case.name for case in cases([0, 8, 8], [0], [2, 2])] == ["pp8 @ d2"]


def test_mean_length_is_that_of_the_steps() -> None:
    # after steps at depth 10 the cache holds 11, 12 and 13 tokens
    assert Case(kind="tg", tokens=3, depth=10).mean_length == 12


def test_cases_that_fill_the_context_pass() -> None:
    check_context([Case(kind="pp", tokens=64), Case(kind="tg", tokens=4, depth=60)], 64)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            [Case(kind="pp", tokens=4), Case(kind="tg", tokens=5, depth=60)],
            r"^tg5 @ d60 .* 64 tokens, got 65\. .* -n 4\.$",
        ),
        (cases([512], [128]), "at most -p 64 -n 64"),
        ([Case(kind="pp", tokens=1, depth=64)], "a depth below 64"),
    ],
)
def test_a_case_beyond_the_context_is_named_with_what_fits(
    chosen: Sequence[Case], message: str
) -> None:
    with pytest.raises(ContextLengthError, match=message):
        check_context(chosen, 64)


@pytest.mark.parametrize(("tokens", "depth"), [(0, 0), (-1, 0), (1, -1)])
def test_numbers_out_of_range_are_rejected(tokens: int, depth: int) -> None:
    with pytest.raises(InputError, match="at least 1 token"):
        check_context([Case(kind="pp", tokens=tokens, depth=depth)], 64)

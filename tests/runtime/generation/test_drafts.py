"""Drafts: what they propose, and that a sequence does not depend on them."""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.conftest import Models
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.generation.drafts import SIZES, Drafter, DraftModel, Pace, PromptLookup
from ortolan.runtime.generation.sampling_options import Sampling

PROMPT = [5, 6, 7, 8, 9] * 6


class Fixed:
    """Guesses that are given, right or wrong; `None` never guesses."""

    def __init__(self, guesses: Sequence[int] | None) -> None:
        self._guesses = guesses

    def begin(self, prompt: Sequence[int]) -> Drafter:
        return _FixedDrafter(self._guesses)


class _FixedDrafter:
    def __init__(self, guesses: Sequence[int] | None) -> None:
        self._guesses, self._place = guesses or [], 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._place += len(tokens)

    def propose(self, most: int) -> list[int]:
        return list(self._guesses[self._place : self._place + most])


def generate(model: Decoder, draft: Any, count: int = 40, **options: Any) -> Any:
    prompt = options.pop("prompt", PROMPT)
    return model.generate(prompt, draft=draft, max_new_tokens=count, ignore_eos=True, **options)


@pytest.mark.parametrize("kind", ["fp32", "split", "int4", "int8-prefill"])
@settings(max_examples=15, deadline=None)
@given(
    sampling=st.sampled_from(
        [Sampling(), Sampling(temperature=1, seed=3), Sampling(temperature=0.7, top_p=0.9, seed=4)]
    ),
    wrong=st.sets(st.integers(0, 39)),
    count=st.integers(1, 40),
)
def test_right_and_wrong_guesses_do_not_change_the_sequence(
    models: Models, kind: str, sampling: Sampling, wrong: set[int], count: int
) -> None:
    plain = generate(models[kind], Fixed(None), count, sampling=sampling)
    guesses = [(token + (place in wrong)) % VOCABULARY for place, token in enumerate(plain.tokens)]
    drafted = generate(models[kind], Fixed(guesses), count, sampling=sampling)
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == "length"
    assert drafted.timings.accepted_tokens <= drafted.timings.drafted_tokens <= 64 * count


def test_right_guesses_save_calls(models: Models) -> None:
    model = models["fp32"]
    plain = generate(model, Fixed(None))
    drafted = generate(model, Fixed(plain.tokens))
    assert drafted.tokens == plain.tokens
    assert drafted.timings.accepted_tokens >= 19  # every second token, in calls of two
    timings = generate(model, DraftModel(model), 30).timings
    assert timings.accepted_tokens >= 0.9 * timings.drafted_tokens > 0


def test_an_end_within_a_draft_ends_the_sequence(models: Models) -> None:
    free = generate(models["fp32"], Fixed(None))
    stop = free.tokens[20]
    ended = generate(models["fp32"], Fixed(free.tokens), stop_tokens=[stop])
    assert ended.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert ended.finish_reason == "stop"


def test_the_whole_context_can_be_used(models: Models) -> None:
    prompt = (PROMPT * 40)[: CONTEXT - 30]
    plain, drafted = (
        models["int4"].generate(prompt, draft=draft, ignore_eos=True)
        for draft in (Fixed(None), PromptLookup())
    )
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 30


class Proposing:
    """A caller's own draft, whose drafter proposes one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def begin(self, prompt: Sequence[int]) -> Any:
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, most: int) -> Any:
        return self.value


class Beginning(Proposing):
    """A draft without a drafter."""

    def __init__(self) -> None:
        super().__init__(None)

    def begin(self, prompt: Sequence[int]) -> Any:
        return 5


GUESSES: list[Any] = [
    *([VOCABULARY], [-1], [True], [1.0], ["a"], None, 5, "ab"),
    *([1] * 64, np.array([0.5]), [2**70]),
]

INVALID: dict[str, Callable[[Models], object]] = {
    "recurrent": lambda models: generate(models["recurrent"], PromptLookup(), 2),
    "recurrent draft": lambda models: generate(models["fp32"], DraftModel(models["recurrent"]), 2),
    "text": lambda models: generate(models["fp32"], "lookup", 2),
    "bundle": lambda models: DraftModel(cast(Any, "bundle")),
    "no drafter": lambda models: generate(models["fp32"], Beginning(), 5),
    **{
        f"guess {value!r}": lambda models, value=value: generate(models["fp32"], Proposing(value))  # type: ignore[misc]
        for value in GUESSES
    },
}


def test_invalid_drafts_and_guesses_are_refused(
    models: Models, snapshot: SnapshotAssertion
) -> None:
    def text(name: str) -> str:
        return re.sub(r"propose\(\d+\)", "propose(...)", refusal(lambda: INVALID[name](models)))

    assert {name: text(name) for name in INVALID} == snapshot


@pytest.mark.parametrize("value", [np.array([3]), [np.int64(3)], (3,), []])
def test_guesses_may_be_any_sequence_of_ids(models: Models, value: Any) -> None:
    expected = generate(models["fp32"], Fixed(None), 5).tokens
    assert generate(models["fp32"], Proposing(value), 5).tokens == expected


# --- what is proposed ---------------------------------------------------------------------------


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

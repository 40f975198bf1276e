"""A sequence does not depend on its drafts, greedy or sampled, alone or after another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.conftest import Models
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.drafts import Drafter, DraftModel, PromptLookup
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


@pytest.mark.parametrize("kind", ["fp32", "int4"])
def test_every_kind_of_draft_gives_the_same_sequence(models: Models, kind: str) -> None:
    drafts = (Fixed(None), PromptLookup(), DraftModel(models["fp32"]))
    assert len({generate(models[kind], draft, 60).tokens for draft in drafts}) == 1


def test_a_batch_continues_one_prompt_after_the_other(models: Models) -> None:
    prompts = [PROMPT, PROMPT[1:], [1, 2]]
    together = generate(models["int4"], PromptLookup(), 9, prompt=prompts)
    for prompt, completion in zip(prompts, together, strict=True):
        alone = generate(models["int4"], PromptLookup(), 9, prompt=prompt)
        assert alone.tokens == completion.tokens


def test_a_stream_has_the_same_text(model: Decoder) -> None:
    draft = PromptLookup()
    pieces = model.stream(PROMPT, draft=draft, max_new_tokens=40, ignore_eos=True)
    assert "".join(pieces) == generate(model, draft).text != ""


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


def test_invalid_drafts_are_rejected(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, draft, words in (
        ("recurrent", PromptLookup(), "recurrent state"),
        ("fp32", DraftModel(models["recurrent"]), "'sum'"),
        ("fp32", "lookup", "draft must be"),
    ):
        with pytest.raises(InputError, match=words):
            generate(models[kind], draft, 2)
    monkeypatch.setattr(Proposing, "begin", lambda *_: 5)
    with pytest.raises(InputError, match=r"Proposing\.begin must return"):
        generate(models["fp32"], Proposing(None), 5)


@pytest.mark.parametrize(
    "value",
    [[VOCABULARY], [-1], [True], [1.0], ["a"], None, 5, "ab", [1] * 64, np.array([0.5]), [2**70]],
)
def test_invalid_guesses_are_rejected(models: Models, value: Any) -> None:
    with pytest.raises(InputError, match=r"draft: Proposing\.propose\(\d+\)"):
        generate(models["fp32"], Proposing(value))


@pytest.mark.parametrize("value", [np.array([3]), [np.int64(3)], (3,), []])
def test_guesses_may_be_any_sequence_of_ids(models: Models, value: Any) -> None:
    expected = generate(models["fp32"], Fixed(None), 5).tokens
    assert generate(models["fp32"], Proposing(value), 5).tokens == expected

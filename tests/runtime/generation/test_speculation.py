"""A text is the same whichever drafts were made, greedy and drawn, alone and after another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, tokenizer_json, write_bundle

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.drafts import Drafter, DraftModel, PromptLookup
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load

PROMPT = [5, 6, 7, 8, 9] * 6


class Fixed:
    """Guesses that are known before, right or wrong; `None` never guesses."""

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


def loaded(folder: Path) -> Decoder:
    return load(folder, Decoder, threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    folder = tmp_path_factory.mktemp("speculation")
    kinds = ("fp32", "split", "int4", "int8-prefill", "recurrent")
    return {
        kind: loaded(packed_bundles.write(folder / kind, kind, group=64).path) for kind in kinds
    }


@pytest.mark.parametrize("kind", ["fp32", "split", "int4", "int8-prefill"])
@settings(max_examples=15, deadline=None)
@given(
    sampling=st.sampled_from(
        [Sampling(), Sampling(temperature=1, seed=3), Sampling(temperature=0.7, top_p=0.9, seed=4)]
    ),
    wrong=st.sets(st.integers(0, 39)),
    count=st.integers(1, 40),
)
def test_right_and_wrong_guesses_give_the_text_of_no_guesses(
    models: dict[str, Decoder], kind: str, sampling: Sampling, wrong: set[int], count: int
) -> None:
    model = models[kind]
    plain = model.generate(
        PROMPT, draft=Fixed(None), sampling=sampling, max_new_tokens=count, ignore_eos=True
    )
    guesses = [(token + (place in wrong)) % VOCABULARY for place, token in enumerate(plain.tokens)]
    drafted = model.generate(
        PROMPT, draft=Fixed(guesses), sampling=sampling, max_new_tokens=count, ignore_eos=True
    )
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == "length"
    assert drafted.timings.accepted_tokens <= drafted.timings.drafted_tokens <= 64 * count


def test_guesses_that_are_right_take_fewer_calls(models: dict[str, Decoder]) -> None:
    plain = models["fp32"].generate(PROMPT, draft=Fixed(None), max_new_tokens=40, ignore_eos=True)
    told = models["fp32"].generate(
        PROMPT, draft=Fixed(plain.tokens), max_new_tokens=40, ignore_eos=True
    )
    assert told.tokens == plain.tokens
    assert told.timings.accepted_tokens >= 19  # of a call of two, every second one at the least


@pytest.mark.parametrize("kind", ["fp32", "int4"])
def test_lookup_and_a_model_that_guesses_give_the_same(
    models: dict[str, Decoder], kind: str
) -> None:
    plain, *others = [
        models[kind].generate(PROMPT, draft=draft, max_new_tokens=60, ignore_eos=True)
        for draft in (Fixed(None), PromptLookup(), DraftModel(models["fp32"]))
    ]
    assert [other.tokens for other in others] == [plain.tokens] * 2


def test_a_model_that_guesses_for_itself_is_right(models: dict[str, Decoder]) -> None:
    model = models["fp32"]
    timings = model.generate(
        PROMPT, draft=DraftModel(model), max_new_tokens=30, ignore_eos=True
    ).timings
    assert timings.accepted_tokens >= 0.9 * timings.drafted_tokens > 0


def test_several_prompts_go_on_one_after_the_other(models: dict[str, Decoder]) -> None:
    prompts = [PROMPT, PROMPT[1:], [1, 2]]
    together = models["int4"].generate(
        prompts, draft=PromptLookup(), max_new_tokens=9, ignore_eos=True
    )
    for prompt, completion in zip(prompts, together, strict=True):
        alone = models["int4"].generate(
            prompt, draft=PromptLookup(), max_new_tokens=9, ignore_eos=True
        )
        assert alone.tokens == completion.tokens


def test_a_stream_has_the_same_text(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json())
    model, draft = loaded(tmp_path / "bundle"), PromptLookup()
    whole = model.generate(PROMPT, draft=draft, max_new_tokens=40, ignore_eos=True)
    pieces = model.stream(PROMPT, draft=draft, max_new_tokens=40, ignore_eos=True)
    assert "".join(pieces) == whole.text != ""


def test_an_end_within_a_draft_ends_the_text(models: dict[str, Decoder]) -> None:
    model = models["fp32"]
    free = model.generate(PROMPT, draft=Fixed(None), max_new_tokens=40, ignore_eos=True)
    stop = free.tokens[20]
    ended = model.generate(
        PROMPT, draft=Fixed(free.tokens), max_new_tokens=40, ignore_eos=True, stop_tokens=[stop]
    )
    assert ended.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert ended.finish_reason == "stop"


def test_the_whole_context_can_be_used(models: dict[str, Decoder]) -> None:
    prompt = (PROMPT * 40)[: CONTEXT - 30]
    plain, drafted = [
        models["int4"].generate(prompt, draft=draft, ignore_eos=True)
        for draft in (Fixed(None), PromptLookup())
    ]
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 30


def test_states_that_cannot_go_back_are_refused(models: dict[str, Decoder]) -> None:
    with pytest.raises(InputError, match="recurrent state"):
        models["recurrent"].generate(PROMPT, draft=PromptLookup(), max_new_tokens=2)
    with pytest.raises(InputError, match="'sum'"):
        models["fp32"].generate(PROMPT, draft=DraftModel(models["recurrent"]), max_new_tokens=2)


def test_a_draft_has_to_be_one(models: dict[str, Decoder]) -> None:
    with pytest.raises(InputError, match="draft must be"):
        models["fp32"].generate(PROMPT, draft="lookup", max_new_tokens=2)  # type: ignore[call-overload]


class Proposing(Fixed):
    """A user's own draft, whose drafter proposes one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def begin(self, prompt: Sequence[int]) -> Any:
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, most: int) -> Any:
        return self.value


@pytest.mark.parametrize(
    "value",
    [[VOCABULARY], [-1], [True], [1.0], ["a"], None, 5, "ab", [1] * 64, np.array([0.5]), [2**70]],
)
def test_guesses_that_are_no_ids_of_the_model_are_refused(
    models: dict[str, Decoder], value: Any
) -> None:
    with pytest.raises(InputError, match=r"draft: Proposing\.propose\(\d+\): expected"):
        models["fp32"].generate(PROMPT, draft=Proposing(value), max_new_tokens=40)


@pytest.mark.parametrize("value", [np.array([3]), [np.int64(3)], (3,), []])
def test_guesses_may_be_any_sequence_of_ids(models: dict[str, Decoder], value: Any) -> None:
    asked: Any = {"max_new_tokens": 5, "ignore_eos": True}
    done = models["fp32"].generate(PROMPT, draft=Proposing(value), **asked)
    assert done.tokens == models["fp32"].generate(PROMPT, draft=Fixed(None), **asked).tokens


def test_a_draft_has_to_begin_a_drafter(
    models: dict[str, Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proposing, "begin", lambda *_: 5)
    with pytest.raises(InputError, match=r"Proposing\.begin must return"):
        models["fp32"].generate(PROMPT, draft=Proposing(None), max_new_tokens=5)

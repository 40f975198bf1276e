import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_decoder import (
    BOS,
    CONTEXT,
    EOS,
    TinyDecoder,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import (
    ContextLengthError,
    NumericError,
)
from ortolan.runtime.generation.sampling import Sampling
from ortolan.runtime.loading import load

POISON = 13
SEED_LIMIT = 2**63

prompts = st.lists(st.integers(0, BOS - 1), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("generate")


@pytest.fixture(scope="module")
def tiny(folder: Any) -> TinyDecoder:
    return write_bundle(
        folder / "bundle", tokenizer=tokenizer_json(), tokens=Tokens(bos=BOS, eos=(EOS,))
    )


@pytest.fixture(scope="module")
def model(tiny: TinyDecoder) -> Decoder:
    return load(tiny.path, Decoder)


@pytest.fixture(scope="module")
def bare(folder: Any) -> Decoder:
    """The same weights, with neither a tokenizer nor special tokens."""
    return load(write_bundle(folder / "bare").path, Decoder)


def greedy(tiny: TinyDecoder, prompt: list[int], count: int) -> list[int]:
    """Tokens by the reference, the whole sequence computed again for each."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(tiny.reference(tokens)[-1].argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class Countdown:
    """Says no so many times, then yes."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


# --- tokens -----------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(prompt=prompts)
def test_greedy_tokens_are_those_of_the_reference(
    tiny: TinyDecoder, model: Decoder, prompt: list[int]
) -> None:
    completion = model.generate(prompt, max_new_tokens=8)
    assert list(completion.tokens) == greedy(tiny, prompt, 8)


def test_generating_across_growths_of_the_cache_gives_the_reference(
    tiny: TinyDecoder, bare: Decoder
) -> None:
    prompt = [index * 5 % BOS for index in range(250)]
    tokens = list(bare.generate(prompt, max_new_tokens=300).tokens)
    expected = tiny.reference(prompt + tokens)[249:-1]
    # the highest of the reference, or within the rounding of it
    chosen = expected[np.arange(300), tokens]
    assert (expected.max(axis=-1) - chosen < 1e-3).all()
    assert (expected.argmax(axis=-1) == tokens).mean() > 0.99


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=2.0, seed=3)])
def test_a_text_that_may_be_cancelled_is_that_of_one_that_may_not(
    model: Decoder, sampling: Sampling
) -> None:
    asked: Any = {"max_new_tokens": 40, "sampling": sampling}
    alone, watched = (model.generate([9], cancel=c, **asked) for c in (None, lambda: False))
    assert (alone.tokens, alone.text, alone.finish_reason) == (
        *(watched.tokens, watched.text, watched.finish_reason),
    )


@settings(max_examples=8, deadline=None)
@given(rows=st.lists(prompts, min_size=2, max_size=5), count=st.integers(1, 12))
def test_several_prompts_give_what_each_gives_alone(
    model: Decoder, rows: list[list[int]], count: int
) -> None:
    together = model.generate(rows, max_new_tokens=count)
    alone = [model.generate(row, max_new_tokens=count) for row in rows]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.finish_reason for one in together] == [one.finish_reason for one in alone]


@pytest.mark.parametrize("seed", [7, SEED_LIMIT - 1])
def test_a_row_samples_as_its_prompt_alone_with_the_seed_counted_up(
    model: Decoder, seed: int
) -> None:
    rows = ["one", "another", "x", "one"]
    sampling = Sampling(temperature=1.0, seed=seed)
    together = model.generate(rows, max_new_tokens=20, sampling=sampling)
    for index, row in enumerate(rows):
        own = Sampling(temperature=1.0, seed=(seed + index) % SEED_LIMIT)
        alone = model.generate(row, max_new_tokens=20, sampling=own)
        assert together[index].tokens == alone.tokens
    assert together[0].tokens != together[3].tokens


def test_rows_end_one_by_one_and_disturb_no_other(model: Decoder) -> None:
    rows = ["hello", "a", "worlds of wonder", "e"]
    endless = model.generate(rows, max_new_tokens=30, ignore_eos=True)
    stops = [one.text[at : at + 2] for one, at in zip(endless, (2, 9, 17, 4), strict=True)]
    together = model.generate(rows, max_new_tokens=30, stop=stops, ignore_eos=True)
    assert len({len(one.tokens) for one in together}) > 2
    for row, one in zip(rows, together, strict=True):
        alone = model.generate(row, max_new_tokens=30, stop=stops, ignore_eos=True)
        assert (one.text, one.tokens, one.finish_reason) == (
            alone.text,
            alone.tokens,
            alone.finish_reason,
        )


def test_rows_grow_the_cache_together(model: Decoder, bare: Decoder) -> None:
    rows = [[1] * 3, [2, 3] * 120, [4] * 250]
    together = bare.generate(rows, max_new_tokens=30)
    for row, one in zip(rows, together, strict=True):
        assert one.tokens == bare.generate(row, max_new_tokens=30).tokens


def test_equal_seeds_give_equal_tokens_and_none_gives_others(model: Decoder) -> None:
    def tokens(seed: int | None) -> tuple[int, ...]:
        sampling = Sampling(temperature=1.5, seed=seed)
        return model.generate("hello", max_new_tokens=30, sampling=sampling).tokens

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert tokens(None) != tokens(None)


def test_two_threads_on_one_model_give_what_one_gives(model: Decoder) -> None:
    texts = ["hello", "a", "worlds", "12345"]
    expected = [model.generate(text, max_new_tokens=60).tokens for text in texts]
    got: dict[str, tuple[int, ...]] = {}

    def work(text: str) -> None:
        got[text] = model.generate(text, max_new_tokens=60).tokens

    workers = [threading.Thread(target=work, args=(text,)) for text in texts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [got[text] for text in texts] == expected


# --- where a completion ends ------------------------------------------------------------------


def test_it_ends_at_max_new_tokens(model: Decoder) -> None:
    completion = model.generate("hello", max_new_tokens=5, ignore_eos=True)
    assert (len(completion.tokens), completion.finish_reason) == (5, "length")


def test_it_ends_at_the_end_of_text_whose_own_text_is_not_shown(model: Decoder) -> None:
    bias = Sampling(logit_bias={EOS: 100.0})
    completion = model.generate("hello", max_new_tokens=5, sampling=bias)
    assert (completion.tokens, completion.text) == ((EOS,), "")
    assert completion.finish_reason == "stop"


def test_ignoring_the_end_of_text_goes_on(model: Decoder) -> None:
    bias = Sampling(logit_bias={EOS: 100.0})
    completion = model.generate("hello", max_new_tokens=5, sampling=bias, ignore_eos=True)
    assert (completion.tokens, completion.finish_reason) == ((EOS,) * 5, "length")


def test_it_ends_at_a_stop_text_which_is_not_shown(model: Decoder) -> None:
    text = model.generate("hello", max_new_tokens=20, ignore_eos=True).text
    completion = model.generate("hello", max_new_tokens=20, stop=[text[7:10]], ignore_eos=True)
    cut = text.index(text[7:10])
    assert completion.text == text[:cut]
    assert completion.finish_reason == "stop"
    assert len(completion.tokens) == cut + 3


def test_it_ends_with_the_context_when_nothing_else_ends_it(bare: Decoder) -> None:
    completion = bare.generate([1] * (CONTEXT - 3))
    assert (len(completion.tokens), completion.finish_reason) == (3, "length")


def test_a_prompt_and_its_new_tokens_may_fill_the_context_and_no_more(bare: Decoder) -> None:
    assert len(bare.generate([1] * (CONTEXT - 1), max_new_tokens=1).tokens) == 1
    with pytest.raises(ContextLengthError, match="1090 and 11"):
        bare.generate([1] * 1090, max_new_tokens=11)
    with pytest.raises(ContextLengthError, match=f"{CONTEXT} and 1 new"):
        bare.generate([[1], [1] * CONTEXT])


# --- cancelling -------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "count"), [(0, 0), (1, 1), (5, 5)])
def test_cancelling_keeps_the_tokens_so_far(model: Decoder, times: int, count: int) -> None:
    completion = model.generate("hello", ignore_eos=True, cancel=Countdown(times))
    whole = model.generate("hello", max_new_tokens=20, ignore_eos=True)
    assert completion.finish_reason == "cancelled"
    assert completion.tokens == whole.tokens[:count]
    assert completion.text == whole.text[:count]


def test_cancelling_in_the_middle_of_a_long_prompt_takes_at_most_a_chunk(bare: Decoder) -> None:
    cancel = Countdown(1)
    completion = bare.generate([1] * 1000, max_new_tokens=5, cancel=cancel)
    assert (completion.tokens, completion.finish_reason) == ((), "cancelled")
    assert cancel.left == -1


def test_a_long_prompt_can_be_cancelled_every_few_tokens(bare: Decoder) -> None:
    cancel = Countdown(1000)
    bare.generate([5] * 640, max_new_tokens=1, cancel=cancel)
    assert 1000 - cancel.left >= 10, "parts of a prompt of at most 64 tokens"


def test_cancelling_several_prompts_cancels_those_that_have_not_ended(model: Decoder) -> None:
    cancel = Countdown(2 + 3)  # two prompts, three steps
    first, second = model.generate(["a", "b"], max_new_tokens=4, ignore_eos=True, cancel=cancel)
    assert (len(first.tokens), first.finish_reason) == (4, "length")
    assert (len(second.tokens), second.finish_reason) == (4, "length")
    cancel = Countdown(1)
    first, second = model.generate(["a", "b"], max_new_tokens=4, ignore_eos=True, cancel=cancel)
    assert (len(first.tokens), first.finish_reason) == (1, "cancelled")
    assert (len(second.tokens), second.finish_reason) == (0, "cancelled")


def test_an_object_without_a_hash_cancels(model: Decoder) -> None:
    @dataclass
    class Always:
        def __call__(self) -> bool:
            return True

    done = model.generate(["hello", "worlds"], max_new_tokens=5, cancel=Always())
    assert [one.finish_reason for one in done] == ["cancelled", "cancelled"]


def test_an_event_cancels_from_another_thread(model: Decoder) -> None:
    event = threading.Event()
    stream = model.stream("hello", ignore_eos=True, cancel=event)
    next(stream)
    threading.Thread(target=event.set).start()
    assert event.wait(20)
    assert "".join(stream) == ""
    assert stream.completion.finish_reason == "cancelled"


# --- faults -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisoned(folder: Any) -> Decoder:
    """The token `POISON` gives logits that are not numbers."""
    return load(write_bundle(folder / "poisoned", poisoned=POISON).path, Decoder)


@pytest.mark.parametrize("prompt", [[POISON], [1, POISON, 2], [[1, 2], [3, POISON]]])
def test_a_prompt_whose_logits_are_not_finite_is_an_error(poisoned: Decoder, prompt: Any) -> None:
    with pytest.raises(NumericError, match="step 1"):
        poisoned.generate(prompt, max_new_tokens=3)


def test_logits_that_stop_being_finite_are_an_error_that_names_the_step(poisoned: Decoder) -> None:
    # 50 comes first; divided by 3 it is below the poisoned token, which comes second
    sampling = Sampling(logit_bias={50: 1000.0, POISON: 600.0}, repetition_penalty=3.0)
    assert poisoned.generate([1], max_new_tokens=2, sampling=sampling).tokens == (50, POISON)
    with pytest.raises(NumericError, match="step 3"):
        poisoned.generate([1], max_new_tokens=3, sampling=sampling)


# --- timings -----------------------------------------------------------------------------------


def test_timings_agree_with_each_other(model: Decoder) -> None:
    rows = model.generate(["hello", "a"], max_new_tokens=20, ignore_eos=True)
    for row, count in zip(rows, (5, 1), strict=True):
        timings = row.timings
        assert (timings.prompt_tokens, timings.new_tokens) == (count, 20)
        assert 0 < timings.prefill_s <= timings.time_to_first_token_s
        assert timings.decode_s > 0
        assert timings.tokens_per_second == pytest.approx(19 / timings.decode_s)
        assert timings.prefill_tokens_per_second == pytest.approx(count / timings.prefill_s)
    first, second = (row.timings.time_to_first_token_s for row in rows)
    assert first < second


def test_timings_of_nothing_are_zero(model: Decoder) -> None:
    timings = model.generate("hello", cancel=lambda: True).timings
    assert (timings.new_tokens, timings.prefill_s, timings.tokens_per_second) == (0, 0.0, 0.0)
    one = model.generate("hello", max_new_tokens=1).timings
    assert (one.decode_s, one.tokens_per_second) == (0.0, 0.0)


# --- requests one after the other and at once ---------------------------------------------------


def test_a_request_gives_what_it_gives_first_whatever_came_before(tiny: TinyDecoder) -> None:
    def prompt(length: int, seed: int) -> list[int]:
        return [(seed + 7 * index) % BOS for index in range(length)]

    requests = [
        [prompt(300, 5)],
        [prompt(9, 1)],
        [prompt(30, 4), prompt(2, 5), prompt(280, 6)],
        [prompt(3, 7), prompt(25, 8), prompt(11, 9)],
    ]

    def tokens(model: Decoder, prompts: list[list[int]]) -> list[tuple[int, ...]]:
        done = model.generate(prompts, max_new_tokens=20, ignore_eos=True)
        return [one.tokens for one in done]

    used, got = load(tiny.path, Decoder, threads=1), {}
    expected = [tokens(load(tiny.path, Decoder, threads=1), prompts) for prompts in requests]
    assert [tokens(used, prompts) for prompts in requests] == expected

    def work(thread: int) -> None:
        got[thread] = [tokens(used, prompts) for prompts in requests]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {index: expected for index in range(3)}

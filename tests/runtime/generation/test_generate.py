"""`Decoder.generate` and `stream`: tokens, ends, cancellation, failures and timings."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.conftest import POISON
from tests.runtime.serving.faults import failing
from tests.runtime.tiny_decoder import BOS, CONTEXT, EOS, TinyDecoder

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load

SEED_LIMIT = 2**63

prompts = st.lists(st.integers(0, BOS - 1), min_size=1, max_size=20)


def greedy(tiny: TinyDecoder, prompt: list[int], count: int) -> list[int]:
    """Tokens by the reference, which computes the whole sequence for each."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(tiny.reference(tokens)[-1].argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


def outcome(done: Completion) -> tuple[Any, ...]:
    return done.text, done.tokens, done.finish_reason


@dataclass
class Countdown:
    """Returns False a number of times, then True. It cannot be hashed."""

    left: int

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def in_threads(work: Any, values: Any) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, values))


# --- tokens -----------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(prompt=prompts)
def test_greedy_tokens_equal_the_reference(
    tiny: TinyDecoder, model: Decoder, prompt: list[int]
) -> None:
    assert list(model.generate(prompt, max_new_tokens=8).tokens) == greedy(tiny, prompt, 8)


@pytest.mark.parametrize("seed", [7, SEED_LIMIT - 1])
def test_seeds_of_a_batch_count_up(model: Decoder, seed: int) -> None:
    rows = ["one", "another", "x", "one"]
    sampling = Sampling(temperature=1.0, seed=seed)
    together = model.generate(rows, max_new_tokens=20, sampling=sampling)
    for index, row in enumerate(rows):
        own = Sampling(temperature=1.0, seed=(seed + index) % SEED_LIMIT)
        assert together[index].tokens == model.generate(row, max_new_tokens=20, sampling=own).tokens
    assert together[0].tokens != together[3].tokens


def test_seeds_make_draws_reproducible(model: Decoder) -> None:
    def tokens(seed: int | None) -> tuple[int, ...]:
        sampling = Sampling(temperature=1.5, seed=seed)
        return model.generate("hello", max_new_tokens=30, sampling=sampling).tokens

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert tokens(None) != tokens(None)


def test_a_request_does_not_depend_on_earlier_or_concurrent_ones(tiny: TinyDecoder) -> None:
    def prompt(length: int, seed: int) -> list[int]:
        return [(seed + 7 * index) % BOS for index in range(length)]

    requests = [
        [prompt(300, 5)],
        [prompt(9, 1)],
        [prompt(30, 4), prompt(2, 5), prompt(280, 6)],
        [prompt(3, 7), prompt(25, 8), prompt(11, 9)],
    ]

    def tokens(model: Decoder, rows: list[list[int]]) -> list[tuple[int, ...]]:
        return [done.tokens for done in model.generate(rows, max_new_tokens=20, ignore_eos=True)]

    used = load(tiny.path, Decoder, threads=1)
    expected = [tokens(load(tiny.path, Decoder, threads=1), rows) for rows in requests]
    assert [tokens(used, rows) for rows in requests] == expected
    got: dict[int, Any] = {}
    in_threads(lambda n: got.update({n: [tokens(used, rows) for rows in requests]}), range(3))
    assert got == {index: expected for index in range(3)}


# --- where a completion ends ------------------------------------------------------------------


def test_it_ends_at_eos_unless_ignored(model: Decoder) -> None:
    bias = Sampling(logit_bias={EOS: 100.0})
    done = model.generate("hello", max_new_tokens=5, sampling=bias)
    assert outcome(done) == ("", (EOS,), "stop")
    done = model.generate("hello", max_new_tokens=5, sampling=bias, ignore_eos=True)
    assert (done.tokens, done.finish_reason) == ((EOS,) * 5, "length")


def test_it_ends_at_a_stop_text_which_is_not_shown(model: Decoder) -> None:
    text = model.generate("hello", max_new_tokens=20, ignore_eos=True).text
    done = model.generate("hello", max_new_tokens=20, stop=[text[7:10]], ignore_eos=True)
    cut = text.index(text[7:10])
    assert (done.text, done.finish_reason, len(done.tokens)) == (text[:cut], "stop", cut + 3)


def test_it_ends_with_the_context(bare: Decoder) -> None:
    done = bare.generate([1] * (CONTEXT - 3))
    assert (len(done.tokens), done.finish_reason) == (3, "length")
    assert len(bare.generate([1] * (CONTEXT - 1), max_new_tokens=1).tokens) == 1
    with pytest.raises(ContextLengthError, match="1090 and 11"):
        bare.generate([1] * 1090, max_new_tokens=11)
    with pytest.raises(ContextLengthError, match=f"{CONTEXT} and 1 new"):
        bare.generate([[1], [1] * CONTEXT])


# --- cancelling -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_cancelling_keeps_the_tokens_so_far(model: Decoder, count: int) -> None:
    done = model.generate("hello", ignore_eos=True, cancel=Countdown(count))
    whole = model.generate("hello", max_new_tokens=20, ignore_eos=True)
    assert outcome(done) == (whole.text[:count], whole.tokens[:count], "cancelled")


def test_a_long_prompt_can_be_cancelled_between_its_chunks(bare: Decoder) -> None:
    cancel = Countdown(1)
    done = bare.generate([1] * 1000, max_new_tokens=5, cancel=cancel)
    assert (done.tokens, done.finish_reason, cancel.left) == ((), "cancelled", -1)
    cancel = Countdown(1000)
    bare.generate([5] * 640, max_new_tokens=1, cancel=cancel)
    assert 1000 - cancel.left >= 10, "chunks of at most 64 tokens"


def test_cancelling_a_batch_cancels_unfinished_rows(model: Decoder) -> None:
    def rows(cancel: Countdown) -> list[tuple[int, str]]:
        batch = model.generate(["a", "b"], max_new_tokens=4, ignore_eos=True, cancel=cancel)
        return [(len(done.tokens), done.finish_reason) for done in batch]

    assert rows(Countdown(2 + 3)) == [(4, "length")] * 2  # two prompts, three steps
    assert rows(Countdown(1)) == [(1, "cancelled"), (0, "cancelled")]


def test_an_event_cancels_from_another_thread(model: Decoder) -> None:
    event = threading.Event()
    stream = model.stream("hello", ignore_eos=True, cancel=event)
    next(stream)
    in_threads(lambda _: event.set(), [0])
    assert "".join(stream) == ""
    assert stream.completion.finish_reason == "cancelled"


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[POISON], [1, POISON, 2], [[1, 2], [3, POISON]]])
def test_a_prompt_whose_logits_are_not_finite_is_an_error(poisoned: Decoder, prompt: Any) -> None:
    with pytest.raises(NumericError, match="step 1"):
        poisoned.generate(prompt, max_new_tokens=3)


def test_logits_that_stop_being_finite_name_the_step(poisoned: Decoder) -> None:
    # 50 comes first; divided by 3 it is below the poisoned token, which comes second
    sampling = Sampling(logit_bias={50: 1000.0, POISON: 600.0}, repetition_penalty=3.0)
    assert poisoned.generate([1], max_new_tokens=2, sampling=sampling).tokens == (50, POISON)
    with pytest.raises(NumericError, match="step 3"):
        poisoned.generate([1], max_new_tokens=3, sampling=sampling)


# --- timings ----------------------------------------------------------------------------------


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
    one = model.generate("hello", max_new_tokens=1).timings
    assert (one.decode_s, one.tokens_per_second) == (0.0, 0.0)
    none = model.generate("hello", cancel=lambda: True).timings
    assert (none.new_tokens, none.prefill_s, none.tokens_per_second) == (0, 0.0, 0.0)


# --- streams -----------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20))
def test_a_stream_equals_generate(model: Decoder, text: str) -> None:
    whole = model.generate(text, max_new_tokens=25, stop=["H>", "zz"])
    stream = model.stream(text, max_new_tokens=25, stop=["H>", "zz"])
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert stream.completion.tokens == whole.tokens
    assert stream.completion.finish_reason == whole.finish_reason


def test_text_held_back_for_a_stop_text_comes_out_at_the_end(model: Decoder) -> None:
    whole = model.generate("hello", max_new_tokens=10, ignore_eos=True)
    held = whole.text[-2:] + "never"
    stream = model.stream("hello", max_new_tokens=10, ignore_eos=True, stop=[held])
    assert "".join(stream) == whole.text
    answers = iter([False] * 10 + [True])
    cancelled = model.stream("hello", ignore_eos=True, stop=[held], cancel=lambda: next(answers))
    assert "".join(cancelled) == whole.text


def test_each_piece_takes_one_call_of_the_model(model: Decoder) -> None:
    with failing(lambda _: False) as calls:
        stream = model.stream("hello", max_new_tokens=10)
        next(stream)
        assert calls() == 1
        next(stream)
        assert calls() == 2
    assert stream.prompt_progress == (5, 5)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_closed_stream_is_cancelled(model: Decoder, steps: int) -> None:
    with model.stream("hello", ignore_eos=True) as stream:
        pieces = [next(stream) for _ in range(steps)]
        with pytest.raises(InputError, match="not ended"):
            _ = stream.completion
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == "".join(pieces)
    assert list(stream) == []

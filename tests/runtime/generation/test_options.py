"""Options of a request: their effects, and what is rejected before anything is computed."""

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_decoder import CONTEXT, EOS

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.sampling_options import Sampling

SAMPLING = Sampling(temperature=3.0, seed=3)


def test_a_stop_token_ends_the_sequence_and_is_not_text(model: Decoder) -> None:
    whole = model.generate("hello", max_new_tokens=9, ignore_eos=True)
    last = whole.tokens[5]
    end = whole.tokens.index(last) + 1
    done = model.generate("hello", max_new_tokens=9, ignore_eos=True, stop_tokens=[last])
    assert (done.tokens, done.finish_reason) == (whole.tokens[:end], "stop")
    assert done.text == whole.text[: end - 1]


@pytest.mark.parametrize("fewest", [0, 1, 7])
def test_eos_is_not_allowed_before_min_new_tokens(model: Decoder, fewest: int) -> None:
    ends = Sampling(logit_bias={EOS: 1000.0})
    done = model.generate("hello", max_new_tokens=9, min_new_tokens=fewest, sampling=ends)
    assert EOS not in done.tokens[:-1]
    assert (done.tokens[-1], len(done.tokens), done.finish_reason) == (EOS, fewest + 1, "stop")


def test_n_repeats_each_prompt(model: Decoder) -> None:
    options: Options = {"max_new_tokens": 9, "sampling": SAMPLING, "ignore_eos": True}
    repeated = model.generate(["hello", "a"], n=2, **options)
    listed = model.generate(["hello", "hello", "a", "a"], **options)
    assert [done.tokens for done in repeated] == [done.tokens for done in listed]
    assert [done.tokens for done in model.generate("hello", n=2, **options)] == [
        done.tokens for done in repeated[:2]
    ]
    assert len(model.generate("hello", n=1, **options)) == 1


def test_temperature_is_short_for_a_sampling(model: Decoder) -> None:
    greedy = model.generate("hello", temperature=0.0, max_new_tokens=9)
    assert greedy.tokens == model.generate("hello", max_new_tokens=9).tokens
    draws = {model.generate("hello", temperature=2.0, max_new_tokens=9).tokens for _ in range(4)}
    assert len(draws) > 1


INVALID: list[dict[str, Any]] = [
    {"max_tokens": 3},
    {"frob": 3},
    {"max_new_tokens": 0},
    {"max_new_tokens": True},
    {"max_new_tokens": CONTEXT},
    {"min_new_tokens": -1},
    {"min_new_tokens": True},
    {"min_new_tokens": 4, "max_new_tokens": 3},
    {"stop_tokens": [97]},
    {"stop_tokens": "a"},
    {"stop_tokens": [1] * 65},
    {"sampling": {}},
    {"sampling": "mine"},
    {"sampling": Sampling(), "temperature": 1.0},
    {"sampling": Sampling(logit_bias={97: 1.0})},
    {"temperature": -1.0},
    {"stop": 5},
    {"stop": "text"},
    {"stop": [""]},
    {"cancel": True},
    *({"logprobs": n} for n in (-1, 21, True, "3")),
    *({"prompt_logprobs": n} for n in (-1, 21, True, "3")),
    {"prompt_logprobs": 1, "max_new_tokens": -1},
    {"grammar": {}},
    *({"n": n} for n in (0, True, "2", 257)),
    {"prompt_logprobs": 1, "max_new_tokens": 0, "min_new_tokens": 1},
]


@pytest.mark.parametrize("options", INVALID, ids=str)
def test_an_invalid_option_is_refused_before_anything_is_computed(
    model: Decoder,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(Runner, "step", lambda _: pytest.fail("computed"))
    text = refusal(lambda: model.generate("hello", **options))
    assert text == snapshot
    if "n" not in options:
        assert refusal(lambda: model.stream("hello", **options)) == text

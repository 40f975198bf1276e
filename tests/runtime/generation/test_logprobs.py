"""Log-probabilities of tokens, compared with PyTorch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_decoder import TinyDecoder

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.logprobs import token_logprobs, top_tokens
from ortolan.runtime.generation.sampling_options import Sampling


@pytest.mark.parametrize("size", [5, 300, 5_000, 70_000])
@pytest.mark.parametrize("scale", [0.1, 5.0, 80.0])
def test_logprobs_equal_pytorch(size: int, scale: float) -> None:
    logits_V = np.random.default_rng(size).normal(0, scale, size).astype(np.float32)
    expected = torch.log_softmax(torch.from_numpy(logits_V).double(), dim=0)
    values, tokens = torch.topk(expected, min(20, size))
    result = token_logprobs(logits_V, size - 1, 20)
    assert [token for token, _ in result.top] == tokens.tolist()
    assert [value for _, value in result.top] == pytest.approx(values.tolist(), rel=1e-5, abs=1e-5)
    assert result.logprob == pytest.approx(float(expected[-1]), rel=1e-5, abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3_000), st.integers(0, 20), st.integers(1, 50), st.integers(0, 9))
def test_top_tokens_equal_a_stable_sort(size: int, count: int, distinct: int, seed: int) -> None:
    scores_V = np.random.default_rng(seed).integers(0, distinct, size).astype(np.float32)
    expected = np.argsort(-scores_V, kind="stable")[:count]
    assert top_tokens(scores_V, count).tolist() == expected.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    with pytest.raises(NumericError, match="logprobs"):
        token_logprobs(np.array([0, bad, 1], np.float32), 0, 1)


def test_logprobs_do_not_depend_on_sampling_options(model: Decoder, tiny: TinyDecoder) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, logit_bias={5: 3.0}, seed=1)
    done = model.generate(
        "hello",
        max_new_tokens=12,
        sampling=sampling,
        logprobs=3,
        grammar=Grammar.regex("[a-z]{10}"),
    )
    assert done.logprobs is not None
    assert [logprobs.token for logprobs in done.logprobs] == list(done.tokens)
    assert model.tokenizer is not None
    fed = [*model.tokenizer.encode("hello"), *done.tokens]
    expected_SV = torch.log_softmax(torch.from_numpy(tiny.reference(fed)), dim=1)[4:]
    for logprobs, expected_V in zip(done.logprobs, expected_SV, strict=False):
        assert logprobs.logprob == pytest.approx(float(expected_V[logprobs.token]), abs=1e-3)
        assert [token for token, _ in logprobs.top] == torch.topk(expected_V, 3).indices.tolist()


def test_a_count_of_zero_returns_the_chosen_token_only(model: Decoder) -> None:
    done = model.generate("hello", max_new_tokens=2, logprobs=0)
    assert done.logprobs is not None
    assert [logprobs.top for logprobs in done.logprobs] == [(), ()]
    assert model.generate("hello", max_new_tokens=2).logprobs is None

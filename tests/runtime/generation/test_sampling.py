"""Sampling: against Hugging Face's processors, against plain formulas, and its laws."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ortolan.runtime.errors import NumericError, SamplingError
from ortolan.runtime.generation.sampling import Sampler, _pick, keep_min_p, keep_top_k, keep_top_p
from ortolan.runtime.generation.sampling_options import Sampling

Logits = NDArray[np.float32]

V = 24


def row(*logits: float) -> Logits:
    return np.array(logits, np.float32)


def distinct_logits(size: int = V) -> st.SearchStrategy[Logits]:
    """Logits of the usual size, some of them ruled out, no two with the same probability."""
    values = st.integers(-12_000, 12_000).filter(lambda x: x != 0).map(lambda x: x / 1000)
    many = st.lists(values, min_size=size, max_size=size, unique=True)
    masks = st.sets(st.integers(1, size - 1), max_size=size // 2)
    return st.tuples(many, masks).map(_masked)


def _masked(drawn: tuple[list[float], set[int]]) -> Logits:
    logits = row(*drawn[0])
    logits[list(drawn[1])] = -np.inf
    return logits


def any_logits() -> st.SearchStrategy[Logits]:
    """Any finite logits and -inf, ties included, at least one finite."""
    finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
    few = st.sampled_from([-1.0, 0.0, 1.0, -math.inf])
    logits = arrays.arrays(np.float32, st.integers(1, 70), elements=st.one_of(finite, few))
    return logits.filter(lambda row: bool(np.isfinite(row).any()))


def samplings() -> st.SearchStrategy[Sampling]:
    return st.builds(
        Sampling,
        temperature=st.floats(0.05, 4),
        top_k=st.integers(0, V + 5),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 1, exclude_min=True)),
        min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
        repetition_penalty=st.one_of(st.just(1.0), st.floats(0.2, 5)),
        presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
        frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
        logit_bias=st.dictionaries(st.integers(0, V - 1), st.floats(-20, 20), max_size=4),
        seed=st.integers(0, 100),
    )


tokens = st.lists(st.integers(0, V - 1), max_size=12)


def new_sampler(
    sampling: Sampling, prompt: Sequence[int] = (), generated: Sequence[int] = ()
) -> Any:
    sampler = Sampler(sampling, V, prompt=prompt)
    for token in generated:
        sampler.record(token)
    return sampler


def dense(ids_N: NDArray[np.intp], probabilities_N: NDArray[np.float64]) -> NDArray[np.float64]:
    probabilities_V = np.zeros(V)
    probabilities_V[ids_N] = probabilities_N
    return probabilities_V


# --- against Hugging Face -------------------------------------------------------------------


def reference(
    logits: Logits, sampling: Sampling, prompt: list[int], generated: list[int]
) -> NDArray[np.float64]:
    """The distribution that Hugging Face's processors give, in double precision."""
    scores = torch.from_numpy(logits.astype(np.float64))[None].clone()
    for token, bias in sampling.logit_bias.items():
        scores[0, token] += bias
    context: Any = torch.tensor([prompt + generated], dtype=torch.long)
    if context.numel() and sampling.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(context, scores)
    for token in range(V):
        # https://platform.openai.com/docs/api-reference: mu - c * frequency - (c > 0) * presence
        count = generated.count(token)
        scores[0, token] -= count * sampling.frequency_penalty
        scores[0, token] -= float(count > 0) * sampling.presence_penalty
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    probabilities: NDArray[np.float64] = warpers(context, scores).softmax(dim=-1)[0].numpy()
    return probabilities


@settings(deadline=None)
@given(logits=distinct_logits(), sampling=samplings(), prompt=tokens, generated=tokens)
def test_distribution_equals_hugging_face_in_the_same_order(
    logits: Logits, sampling: Sampling, prompt: list[int], generated: list[int]
) -> None:
    ours = dense(*new_sampler(sampling, prompt, generated).distribution(logits))
    expected = reference(logits, sampling, prompt, generated)
    # a token at a threshold may fall either way: a nearby threshold must then give our set
    if not np.array_equal(ours > 0, expected > 0):
        near = [
            reference(logits, options, prompt, generated)
            for factor in (1 - 1e-5, 1 + 1e-5)
            for options in (
                replace(sampling, top_p=min(1.0, sampling.top_p * factor)),
                replace(sampling, min_p=min(1.0, sampling.min_p * factor)),
            )
        ]
        expected = next((p for p in near if np.array_equal(ours > 0, p > 0)), expected)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(logits=distinct_logits(), sampling=samplings(), prompt=tokens, generated=tokens)
def test_greedy_takes_the_highest_adjusted_logit(
    logits: Logits, sampling: Sampling, prompt: list[int], generated: list[int]
) -> None:
    plain = Sampling(
        temperature=1.0,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
    )
    expected = reference(logits, plain, prompt, generated)
    highest = np.sort(expected)[-2:]
    assume(highest[1] - highest[0] > 1e-5)
    greedy = new_sampler(replace(sampling, temperature=0.0), prompt, generated)
    assert greedy.distribution(logits)[0].tolist() == [expected.argmax()]
    assert greedy.next(logits) == expected.argmax()


# --- against plain formulas, with large vocabularies ------------------------------------------


def large_row(kind: str, size: int, seed: int) -> Logits:
    random = np.random.default_rng(seed)
    logits_V = random.normal(0, 3, size)
    if kind == "flat":
        logits_V = random.normal(0, 0.01, size)
    elif kind == "peaked":
        logits_V = random.permutation(-2.0 * np.log(np.arange(1, size + 1)))
    elif kind == "ties":
        logits_V = random.integers(-3, 4, size).astype(np.float64)
    elif kind == "masked":
        logits_V[random.random(size) < 0.999] = -np.inf
        logits_V[0] = 1.0
    elif kind == "tiny":
        logits_V = logits_V * 1e-6 + 1e4
    elif kind == "one":
        logits_V[size // 2] = 100.0
    return logits_V.astype(np.float32)


def plain_token(logits_V: Logits, sampling: Sampling, uniform: float) -> int:
    """The documented order, by full sorts."""
    ids = np.arange(logits_V.size)
    if 0 < sampling.top_k < logits_V.size:
        ids = np.flatnonzero(logits_V >= np.sort(logits_V)[-sampling.top_k])
    scores = logits_V[ids].astype(np.float64) - float(logits_V.max())
    weights = np.exp(scores / sampling.temperature)
    if sampling.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        sums = np.cumsum(weights[order])
        count = min(1 + int(np.searchsorted(sums, sampling.top_p * weights.sum())), sums.size)
        kept = np.sort(order[:count])
        ids, weights = ids[kept], weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p * weights.max())
        ids, weights = ids[kept], weights[kept]
    sums = np.cumsum(weights)
    return int(ids[np.searchsorted(sums, uniform * sums[-1], side="right")])


@pytest.mark.parametrize("size", [1, 255, 5_000, 33_001])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 0.01},
        {"min_p": 0.05},
        {"top_p": 0.95, "min_p": 0.1},
        {"top_k": 40},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_equal_seeds_give_the_tokens_of_plain_formulas(size: int, options: dict[str, Any]) -> None:
    kinds = ("normal", "flat", "peaked", "ties", "masked", "tiny", "one")
    for kind, (seed, temperature) in product(kinds, enumerate([0.3, 0.7, 1.0, 2.5])):
        logits_V = large_row(kind, size, seed)
        sampling = Sampling(temperature=temperature, seed=seed, **options)
        sampler, bits = Sampler(sampling, size), np.random.PCG64(seed)
        for _ in range(4):
            uniform = float((bits.random_raw() >> 11) * 2.0**-53)
            assert sampler.next(logits_V) == plain_token(logits_V, sampling, uniform)


# --- each step ------------------------------------------------------------------------------


def test_penalties_see_more_distinct_tokens_than_fit_at_first() -> None:
    size = 1000
    sampler = Sampler(Sampling(presence_penalty=1.0, repetition_penalty=2.0), size, prompt=[0])
    logits = np.linspace(3, 4, size, dtype=np.float32)
    drawn = [sampler.next(logits) for _ in range(size - 1)]
    assert drawn == list(range(size - 1, 0, -1))


def test_limits_of_cuts_and_draws() -> None:
    weights = np.array([0.2, 0.5, 0.2, 0.1])
    cuts = ((0.5, [1]), (0.51, [0, 1]), (0.7001, [0, 1, 2]), (0.95, [0, 1, 2, 3]), (1e-300, [1]))
    for top_p, expected in cuts:
        assert keep_top_p(weights, top_p).tolist() == expected
    assert keep_top_p(np.ones(3), 1e-20).tolist() == [0]
    assert keep_top_k(row(1, 3, 2, 3), 1).tolist() == [1, 3], "ties are kept"
    assert keep_min_p(np.array([1.0, 0.5, 0.49, 0.0]), 0.5).tolist() == [0, 1]
    weights = np.array([0.0, 1.0, 0.0, 1.0, 0.0])
    assert [_pick(weights, uniform) for uniform in (0.0, 0.4999, 0.5, 1 - 2**-53)] == [1, 1, 3, 3]


# --- laws -----------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    logits=any_logits(),
    temperature=st.one_of(st.floats(0.01, 100), st.sampled_from([5e-324, 1e-40, 1e-10, 1e300])),
    top_k=st.integers(0, 80),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
)
def test_laws_of_the_distribution(
    logits: Logits, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    sampler = Sampler(sampling, logits.size)
    ids, probabilities = sampler.distribution(logits)
    assert np.isfinite(probabilities).all()
    assert abs(probabilities.sum() - 1) <= 1e-9
    assert (np.diff(ids) > 0).all()
    assert not probabilities[np.isneginf(logits[ids])].any()
    assert float(logits[ids].max()) >= float(logits.max()) - 1e-6 * temperature
    assert (probabilities >= min_p * probabilities.max() * (1 - 1e-9)).all()
    if 0 < top_k < logits.size:
        assert (logits[ids] >= np.sort(logits)[-top_k]).all()
    chosen = sampler.next(logits)
    assert chosen in ids[probabilities > 0]


@settings(max_examples=100, deadline=None)
@given(logits=any_logits(), options=samplings(), is_greedy=st.booleans())
def test_logits_stay_unchanged_and_masked_tokens_undrawn(
    logits: Logits, options: Sampling, is_greedy: bool
) -> None:
    bias = {token: 1.0 for token in options.logit_bias if token < logits.size}
    temperature = 0.0 if is_greedy else options.temperature
    sampler = Sampler(replace(options, logit_bias=bias, temperature=temperature), logits.size)
    before = logits.copy()
    logits.flags.writeable = False  # and a write would raise
    try:
        for _ in range(9):
            assert logits[sampler.next(logits)] > -np.inf
    except SamplingError:
        assert np.abs(logits[np.isfinite(logits)]).max() > 1e37
    assert np.array_equal(logits, before)


# --- draws ----------------------------------------------------------------------------------


def test_draws_of_a_seed_are_those_of_pcg64_on_every_platform() -> None:
    # a flat row of 1000: the token is the uniform number in thousandths
    flat = np.zeros(1000, np.float32)
    sampler = Sampler(Sampling(temperature=1.0, seed=42), 1000)
    uniforms = np.random.Generator(np.random.PCG64(42)).random(200)
    assert [sampler.next(flat) for _ in range(200)] == np.floor(uniforms * 1000).astype(
        int
    ).tolist()
    sampler = Sampler(Sampling(temperature=1.0, seed=0), 1000)
    assert [sampler.next(flat) for _ in range(8)] == [636, 269, 40, 16, 813, 912, 606, 729]


# --- greedy ---------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_ties_whatever_the_filters() -> None:
    filtered = Sampling(top_k=1, top_p=0.01, min_p=1.0, seed=3)
    for sampling in (Sampling(), filtered):
        token = Sampler(sampling, 4).next(row(1, 5, 5, 5))
        assert (token, type(token)) == (1, int)


# --- logits that are not finite -------------------------------------------------------------

MODES = {
    "greedy": Sampling(),
    "penalized": Sampling(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={0: 1.0}),
    "sampled": Sampling(temperature=0.7, seed=1),
    "filtered": Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
def test_bad_logit_at_any_place_is_rejected(mode: str, value: float) -> None:
    size = 70  # wider than any vector register, and not a multiple of its width
    for place in range(size):
        logits = np.random.default_rng(place).normal(size=size).astype(np.float32)
        logits[(place * 7) % size] = -np.inf
        logits[place] = value
        with pytest.raises(NumericError, match=f"step 1: .* id {place}"):
            Sampler(MODES[mode], size, prompt=[1, place]).next(logits)


@pytest.mark.parametrize("mode", MODES)
def test_rejected_row_names_the_step_and_leaves_the_samplerunchanged(mode: str) -> None:
    good = np.linspace(0, 1, V, dtype=np.float32)
    bad = good.copy()
    bad[3] = np.nan
    sampler, undisturbed = (Sampler(MODES[mode], V) for _ in range(2))
    first = [sampler.next(good), sampler.next(good)]
    for row_V in (bad, np.full(V, -np.inf, np.float32)):
        with pytest.raises(NumericError, match="step 3"):
            sampler.next(row_V)
    expected = [undisturbed.next(good) for _ in range(4)]
    assert [*first, sampler.next(good), sampler.next(good)] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("options", "logit"),
    [
        ({"logit_bias": {0: 3e38}}, 3e38),
        ({"repetition_penalty": 1e-30}, 1e30),
        ({"repetition_penalty": 1e-300}, 1.0),  # 0 in float32
        ({"repetition_penalty": 1e-300}, 0.0),
    ],
)
def test_option_that_overflows_float32_is_blamed_instead_of_the_model(
    options: dict[str, Any], logit: float, temperature: float
) -> None:
    sampler = Sampler(Sampling(temperature=temperature, **options), 2, prompt=[0])
    with pytest.raises(SamplingError, match="step 1"):
        sampler.next(np.array([logit, 0], np.float32))

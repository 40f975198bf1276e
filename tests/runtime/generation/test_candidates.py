"""Short ways through a large vocabulary: the tokens of the plain formulas, which stand here."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.generation.candidates import draw, highest, likely, nucleus
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.generation.sampling_options import Sampling

ROWS = ["normal", "flat", "peaked", "ties", "masked", "tiny", "one"]
TEMPERATURES = [0.3, 0.7, 1.0, 2.5]


def row(kind: str, size: int, seed: int) -> NDArray[np.float32]:
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
        logits_V[3] = 100.0
    return logits_V.astype(np.float32)


def plain_weights(scores_V: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    return np.exp((scores_V.astype(np.float64) - float(scores_V.max())) / temperature)


def plain_nucleus(weights_V: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    order = np.argsort(-weights_V, kind="stable")
    sums = np.cumsum(weights_V[order])
    count = min(1 + int(np.searchsorted(sums, top_p * weights_V.sum())), sums.size)
    return np.sort(order[:count])


def plain_token(logits_V: NDArray[np.float32], sampling: Sampling, uniform: float) -> int:
    """The formula that the sampler had before it took short ways."""
    ids = np.arange(logits_V.size)
    if 0 < sampling.top_k < logits_V.size:
        ids = np.flatnonzero(logits_V >= np.sort(logits_V)[-sampling.top_k])
    weights = np.exp(
        (logits_V[ids].astype(np.float64) - float(logits_V.max())) / sampling.temperature
    )
    if sampling.top_p < 1:
        kept = plain_nucleus(weights, sampling.top_p)
        ids, weights = ids[kept], weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p * weights.max())
        ids, weights = ids[kept], weights[kept]
    sums = np.cumsum(weights)
    return int(ids[np.searchsorted(sums, uniform * sums[-1], side="right")])


@pytest.mark.parametrize("kind", ROWS)
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
def test_equal_seeds_give_the_tokens_of_the_plain_formulas(
    kind: str, size: int, options: dict[str, float]
) -> None:
    for seed, temperature in enumerate(TEMPERATURES):
        logits_V = row(kind, max(size, 4) if kind == "one" else size, seed)
        sampling = Sampling(temperature=temperature, seed=seed, **options)  # type: ignore[arg-type]
        sampler, bits = Sampler(sampling, logits_V.size), np.random.PCG64(seed)
        for _ in range(4):
            uniform = float((bits.random_raw() >> 11) * 2.0**-53)
            assert sampler.next(logits_V) == plain_token(logits_V, sampling, uniform)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_a_nucleus_is_that_of_a_full_sort_to_the_bit(
    kind: str, temperature: float, top_p: float
) -> None:
    scores_V = row(kind, 33_001, 7)
    weights_V = plain_weights(scores_V, temperature)
    found = nucleus(scores_V, float(scores_V.max()), temperature, top_p)
    if found is not None:
        expected = plain_nucleus(weights_V, top_p)
        assert found[0].tolist() == expected.tolist()
        assert found[1].tolist() == weights_V[expected].tolist()


@pytest.mark.parametrize("kind", ["normal", "peaked", "masked", "one"])
def test_common_rows_take_the_short_way(kind: str) -> None:
    scores_V = row(kind, 33_001, 5)
    top = float(scores_V.max())
    assert nucleus(scores_V, top, 0.7, 0.9) is not None
    assert draw(scores_V, top, 1.0, 0.37) is not None


def test_a_draw_that_rounding_could_decide_is_left_to_the_plain_formula() -> None:
    scores_V = np.zeros(4_096, np.float32)
    assert draw(scores_V, 0.0, 1.0, 0.5) is None
    assert draw(scores_V, 0.0, 1.0, 0.5 + 0.3 / 4_096) == 2_048
    assert draw(scores_V, 0.0, 1.0, 0.0) is None
    assert nucleus(scores_V, 0.0, 1.0, 0.5) is None


@pytest.mark.parametrize("size", [3, 256, 4_097])
@pytest.mark.parametrize("kind", ["normal", "ties", "masked"])
def test_the_highest_and_the_likely_are_among_the_candidates(kind: str, size: int) -> None:
    scores_V = row(kind, size, 3)
    top = float(scores_V.max())
    for count in (1, 2, size):
        least = np.sort(scores_V)[-count]
        assert set(np.flatnonzero(scores_V >= least)) <= set(highest(scores_V, count))
    for min_p in (1.0, 0.1, 1e-6):
        weights_V = plain_weights(scores_V, 0.8)
        expected = set(np.flatnonzero(weights_V >= min_p))
        assert expected <= set(likely(scores_V, top, 0.8, min_p))

import math
from typing import Any

import numpy as np
import pytest

from ortolan.runtime.errors import NumericError, SamplingError
from ortolan.runtime.generation.sampling import Sampler, Sampling

V = 24

MODES = {
    "greedy": Sampling(),
    "penalized": Sampling(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={0: 1.0}),
    "drawn": Sampling(temperature=0.7, seed=1),
    "filtered": Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
def test_bad_logit_at_any_place_is_refused(mode: str, value: float) -> None:
    size = 70  # beyond the width of any vector register, and not a multiple of it
    for place in range(size):
        logits = np.random.default_rng(place).normal(size=size).astype(np.float32)
        logits[(place * 7) % size] = -np.inf
        logits[place] = value
        with pytest.raises(NumericError, match=f"step 1: .* id {place}"):
            Sampler(MODES[mode], size, prompt=[1, place]).next(logits)


@pytest.mark.parametrize("mode", MODES)
def test_row_without_any_token_is_refused(mode: str) -> None:
    with pytest.raises(NumericError, match="-inf"):
        Sampler(MODES[mode], V).next(np.full(V, -np.inf, np.float32))


@pytest.mark.parametrize("mode", MODES)
def test_refusal_names_the_step_and_leaves_the_sampler_as_it_was(mode: str) -> None:
    good = np.linspace(0, 1, V, dtype=np.float32)
    bad = good.copy()
    bad[3] = np.nan
    made, undisturbed = (Sampler(MODES[mode], V) for _ in range(2))
    first = [made.next(good), made.next(good)]
    with pytest.raises(NumericError, match="step 3"):
        made.next(bad)
    expected = [undisturbed.next(good) for _ in range(4)]
    assert [*first, made.next(good), made.next(good)] == expected


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
def test_option_that_leaves_float32_is_blamed_instead_of_the_model(
    options: dict[str, Any], logit: float, temperature: float
) -> None:
    made = Sampler(Sampling(temperature=temperature, **options), 2, prompt=[0])
    with pytest.raises(SamplingError, match="step 1"):
        made.next(np.array([logit, 0], np.float32))

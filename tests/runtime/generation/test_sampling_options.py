import math
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.nonsense import NOT_FINITE, NOT_NUMBERS
from tests.refusals import refusal

from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.limits import MAX_LOGIT_BIAS, MAX_SEED

BELOW = math.nextafter


RANGES: dict[str, tuple[list[Any], list[Any]]] = {  # accepted, rejected
    "temperature": ([0, 5e-324, 1, 2, 100], [-5e-324, -1]),
    "top_k": ([0, 1, 10**9, 10**400], [-1, 1.0, 0.5]),
    "top_p": ([5e-324, 0.5, 1], [0, -0.1, BELOW(1, 2)]),
    "min_p": ([0, 0.5, 1], [-5e-324, BELOW(1, 2)]),
    "repetition_penalty": ([5e-324, 1, 100], [0, -1]),
    "presence_penalty": ([-2, 0, 2], [BELOW(2, 3), BELOW(-2, -3)]),
    "frequency_penalty": ([-2, 0, 2], [BELOW(2, 3), BELOW(-2, -3)]),
    "seed": ([0, MAX_SEED, None], [-1, MAX_SEED + 1, 1.0]),
}


@pytest.mark.parametrize("name", RANGES)
def test_option_is_accepted_up_to_its_limits_and_rejected_by_name(name: str) -> None:
    accepted, rejected = RANGES[name]
    for value in accepted:
        assert getattr(Sampling(**{name: value}), name) == value
    for value in [*rejected, False, *NOT_FINITE, *NOT_NUMBERS, *([10**400] * (name != "top_k"))]:
        with pytest.raises(SamplingError, match=f"^{name} must be"):
            Sampling(**{name: value})


def test_numbers_of_other_kinds_become_plain_numbers() -> None:
    options: dict[str, Any] = {"temperature": np.float32(0.5), "top_p": Fraction(1, 2)}
    options |= {"top_k": np.int64(4), "seed": np.uint8(3)}
    sampling = Sampling(**options)
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.5)
    assert [type(sampling.temperature), type(sampling.top_p)] == [float, float]
    assert [type(sampling.top_k), type(sampling.seed)] == [int, int]


BIASES: list[Any] = [
    *({token: 1.0} for token in (-1, 1.0, True, "1")),
    *({1: value} for value in (math.nan, math.inf, -math.inf, True, "1", 4e38, -4e38)),
    [(1, 1.0)],
    None,
    dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0),
]


def test_a_bad_bias_is_refused(snapshot: SnapshotAssertion) -> None:
    assert [refusal(lambda b=b: Sampling(logit_bias=b)) for b in BIASES] == snapshot  # type: ignore[misc]


def test_bias_is_taken_up_to_its_limits() -> None:
    bias = dict.fromkeys(range(MAX_LOGIT_BIAS), 3.4e38)
    assert Sampler(Sampling(logit_bias=bias), MAX_LOGIT_BIAS)
    with pytest.raises(SamplingError, match=f"below {MAX_LOGIT_BIAS - 1}"):
        Sampler(Sampling(logit_bias=bias), MAX_LOGIT_BIAS - 1)


def test_sampling_is_frozen_and_keeps_its_own_bias() -> None:
    bias = {1: 5.0}
    sampling = Sampling(logit_bias=bias)
    bias[2] = 5.0
    assert sampling.logit_bias == {1: 5.0}
    with pytest.raises(FrozenInstanceError):
        sampling.top_k = 3  # type: ignore[misc]
    assert hash(sampling) == hash(replace(sampling))
    assert pickle.loads(pickle.dumps(sampling)) == sampling

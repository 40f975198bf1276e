import math
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.nonsense import NOT_FINITE, NOT_NUMBERS

from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.sampling import Sampler, Sampling
from ortolan.runtime.limits import MAX_LOGIT_BIAS, MAX_SEED

BELOW = math.nextafter


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [0, 5e-324, 1, 2, 100]),
        ("top_k", [0, 1, 10**9]),
        ("top_p", [5e-324, 0.5, 1]),
        ("min_p", [0, 0.5, 1]),
        ("repetition_penalty", [5e-324, 1, 100]),
        ("presence_penalty", [-2, 0, 2]),
        ("frequency_penalty", [-2, 0, 2]),
        ("seed", [0, MAX_SEED, None]),
    ],
)
def test_option_is_taken_up_to_its_limits(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(Sampling(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-5e-324, -1]),
        ("top_k", [-1, 1.0, 0.5]),
        ("top_p", [0, -0.1, BELOW(1, 2)]),
        ("min_p", [-5e-324, BELOW(1, 2)]),
        ("repetition_penalty", [0, -1]),
        ("presence_penalty", [BELOW(2, 3), BELOW(-2, -3)]),
        ("frequency_penalty", [BELOW(2, 3), BELOW(-2, -3)]),
        ("seed", [-1, MAX_SEED + 1, 1.0]),
    ],
)
def test_option_out_of_range_is_refused_by_name_and_value(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(SamplingError) as caught:
            Sampling(**{name: value})
        assert str(caught.value).startswith(f"{name} must be")


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    ],
)
@pytest.mark.parametrize("value", [False, *NOT_FINITE, *NOT_NUMBERS, 10**400])
def test_option_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    if (name, type(value)) == ("top_k", int):
        assert Sampling(top_k=value).top_k == value  # no limit: it keeps all
        return
    with pytest.raises(SamplingError, match=f"^{name} must be"):
        Sampling(**{name: value})


def test_numbers_of_other_kinds_become_plain_numbers() -> None:
    options: dict[str, Any] = {"temperature": np.float32(0.5), "top_p": Fraction(1, 2)}
    options |= {"top_k": np.int64(4), "seed": np.uint8(3)}
    sampling = Sampling(**options)
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.5)
    assert [type(sampling.temperature), type(sampling.top_p)] == [float, float]
    assert [type(sampling.top_k), type(sampling.seed)] == [int, int]


@pytest.mark.parametrize(
    "bias",
    [
        {-1: 1.0},
        {1.0: 1.0},
        {True: 1.0},
        {"1": 1.0},
        {1: math.nan},
        {1: math.inf},
        {1: -math.inf},
        {1: True},
        {1: "1"},
        {1: 4e38},
        {1: -4e38},
        [(1, 1.0)],
        None,
        dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0),
    ],
)
def test_bad_bias_is_refused(bias: Any) -> None:
    with pytest.raises(SamplingError, match=r"^logit_bias"):
        Sampling(logit_bias=bias)


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

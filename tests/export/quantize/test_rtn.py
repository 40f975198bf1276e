import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import (
    gaussian,
    group_errors,
    heavy_tailed,
    relative_error,
    squared_error,
)

from ortolan.export.quantize import rtn
from ortolan.export.quantize.blocks import dequantize
from ortolan.export.scheme import Scheme

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)

# Far from underflow and overflow of float32.
NUMBERS = st.builds(math.ldexp, st.floats(-1, 1, width=16), st.integers(-60, 100))

MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 70)),
    elements=st.one_of(NUMBERS, st.floats(-1, 1, width=16), st.just(0.0)),
)


@settings(max_examples=150, deadline=None)
@given(matrix=MATRICES, scheme=st.sampled_from(SCHEMES))
def test_numbers_move_by_half_a_step_or_at_the_upper_end_of_symmetric_codes_by_one(
    matrix: NDArray[np.float32], scheme: Scheme
) -> None:
    weight = torch.from_numpy(matrix)
    codes = rtn.quantize(weight, scheme)
    steps = codes.scales.abs().repeat_interleave(scheme.group, 1)[:, : weight.shape[1]]
    off = (dequantize(codes) - weight).abs()
    at_end = (codes.values == scheme.largest) & scheme.symmetric
    most = torch.where(at_end, 1.0, 0.5)
    assert bool((off <= steps * most * 1.001).all())


@settings(max_examples=100, deadline=None)
@given(matrix=MATRICES, scheme=st.sampled_from(SCHEMES))
def test_zero_stays_zero(matrix: NDArray[np.float32], scheme: Scheme) -> None:
    weight = torch.from_numpy(matrix)
    assert not dequantize(rtn.quantize(weight, scheme))[weight == 0].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_symmetric_codes_are_exact_for_the_largest_magnitude(sign: int) -> None:
    weight = gaussian(4, 64)
    weight[:, 10] = weight[:, 40] = sign
    codes = rtn.quantize(weight, Scheme(bits=4, group=32))
    assert torch.equal(dequantize(codes)[:, [10, 40]], weight[:, [10, 40]])
    assert not codes.values[:, [10, 40]].any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_error_shrinks_with_bits_and_with_smaller_groups(symmetric: bool) -> None:
    weight = gaussian(32, 512)

    def error(bits: int, group: int) -> float:
        scheme = Scheme(bits=bits, group=group, symmetric=symmetric)  # type: ignore[arg-type]
        return relative_error(weight, rtn.quantize(weight, scheme))

    assert 0.07 < error(4, 32) < error(4, 64) < error(4, 128) < 0.13
    assert error(8, 32) < error(8, 64) < error(8, 128) < error(4, 32) / 10


def test_zero_points_help_a_weight_that_is_not_centred() -> None:
    weight = gaussian(32, 128) + 0.1
    errors = [
        relative_error(weight, rtn.quantize(weight, Scheme(bits=4, group=32, symmetric=symmetric)))
        for symmetric in (True, False)
    ]
    assert errors[1] < 0.7 * errors[0]


@every_scheme
def test_search_lowers_the_error_of_every_group(scheme: Scheme) -> None:
    weight = heavy_tailed(8, 2 * scheme.group)
    plain = rtn.quantize(weight, scheme)
    searched = rtn.quantize(weight, scheme, importance=torch.ones(2 * scheme.group))
    got, rounded = (group_errors(weight, codes) for codes in (searched, plain))
    assert bool((got <= rounded * 1.0001).all())
    assert squared_error(weight, searched) < 0.99 * squared_error(weight, plain)


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_search_by_importance_lowers_the_error_where_it_matters(scheme: Scheme) -> None:
    weight = heavy_tailed(16, 256)
    importance = torch.rand(256, generator=torch.Generator().manual_seed(0)) ** 4

    def cost(searched_with: torch.Tensor) -> float:
        codes = rtn.quantize(weight, scheme, importance=searched_with)
        return float(((weight - dequantize(codes)).square() * importance).sum())

    assert cost(importance) < 0.95 * cost(torch.ones(256))


def test_search_among_inputs_that_do_not_matter_keeps_the_extremes() -> None:
    scheme, weight = Scheme(bits=4, group=32), gaussian(4, 64)
    codes = rtn.quantize(weight, scheme, importance=torch.zeros(64))
    assert torch.equal(codes.scales, rtn.quantize(weight, scheme).scales)

"""Properties that all methods of rounding share."""

import math
from collections.abc import Callable

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import (
    correlated_inputs,
    gaussian,
    group_errors,
    heavy_tailed,
    on_the_grid,
    quantize_gptq,
    relative_error,
    squared_error,
)
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.quantize import gptq, rtn
from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.quantize.refine import refine
from ortolan.export.scheme import Scheme

Method = Callable[[Tensor, Scheme], Codes]


def searched(weight: Tensor, scheme: Scheme) -> Codes:
    return rtn.quantize(weight, scheme, importance=torch.ones(weight.shape[1]))


def calibrated(weight: Tensor, scheme: Scheme) -> Codes:
    x = correlated_inputs(300, weight.shape[1])
    return quantize_gptq(weight, x.T @ x, scheme)


def refined(weight: Tensor, scheme: Scheme) -> Codes:
    x = correlated_inputs(300, weight.shape[1])
    factor = gptq.factorize(x.T @ x)
    return refine(weight, gptq.round_columns(weight, factor, scheme), factor)


METHODS: dict[str, Method] = {
    "rtn": rtn.quantize,
    "searched": searched,
    "gptq": calibrated,
    "refined": refined,
}

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)
every_method = pytest.mark.parametrize("name", METHODS)
by_group = pytest.mark.parametrize("name", ["rtn", "searched"])


@every_scheme
def test_numbers_on_the_grid_are_exact(scheme: Scheme) -> None:
    weight = on_the_grid(scheme, 5, 2 * scheme.group)
    assert torch.equal(dequantize(rtn.quantize(weight, scheme)), weight)


@every_scheme
@every_method
def test_a_group_of_zeros_is_exact(name: str, scheme: Scheme) -> None:
    weight = gaussian(3, 2 * scheme.group)
    weight[:, : scheme.group] = 0
    codes = METHODS[name](weight, scheme)
    assert not dequantize(codes)[:, : scheme.group].any()
    assert bool(codes.scales.isfinite().all())
    if name == "rtn":
        alone = rtn.quantize(weight[:, scheme.group :], scheme)
        assert torch.equal(codes.values[:, scheme.group :], alone.values)


@every_scheme
@by_group
def test_a_short_last_group_is_rounded_like_a_separate_weight(name: str, scheme: Scheme) -> None:
    weight, method = heavy_tailed(4, 256 + 5), METHODS[name]
    codes, alone = method(weight, scheme), method(weight[:, 256:], scheme)
    assert torch.equal(codes.values[:, 256:], alone.values)
    torch.testing.assert_close(codes.scales[:, -1:], alone.scales)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("symmetric", [True, False])
@by_group
def test_codes_do_not_depend_on_the_size_of_the_weight(
    name: str, symmetric: bool, size: float
) -> None:
    scheme, weight = Scheme(bits=4, group=32, symmetric=symmetric), heavy_tailed(4, 64)
    wanted, got = METHODS[name](weight, scheme), METHODS[name](weight * size, scheme)
    assert float((got.values != wanted.values).float().mean()) < 0.02
    torch.testing.assert_close(got.scales / size, wanted.scales, rtol=0.02, atol=0)


@by_group
def test_chunks_of_rows_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, weight = Scheme(bits=4, group=32, symmetric=False), heavy_tailed(7, 96)
    wanted = METHODS[name](weight, scheme)
    monkeypatch.setattr(rtn, "CHUNK", 200)
    got = METHODS[name](weight, scheme)
    assert torch.equal(got.values, wanted.values)
    assert torch.equal(got.scales, wanted.scales)


@every_method
def test_the_weight_is_unchanged(name: str) -> None:
    weight = gaussian(4, 160)
    before = weight.clone()
    METHODS[name](weight, Scheme(bits=4, group=32))
    assert torch.equal(weight, before)


@every_method
def test_a_weight_that_is_not_finite_is_rejected(name: str) -> None:
    weight = gaussian(2, 32)
    weight[1, 5] = -math.inf
    with pytest.raises(ExportError, match="cannot be quantized"):
        METHODS[name](weight, Scheme(bits=4, group=32))


# --- errors ---------------------------------------------------------------------------------------

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
    assert not dequantize(codes)[weight == 0].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_symmetric_codes_are_exact_for_the_largest_magnitude(sign: int) -> None:
    weight = gaussian(4, 64)
    weight[:, 10] = weight[:, 40] = sign
    codes = rtn.quantize(weight, Scheme(bits=4, group=32))
    assert torch.equal(dequantize(codes)[:, [10, 40]], weight[:, [10, 40]])
    assert not codes.values[:, [10, 40]].any()


def rounding_error(bits: int, group: int, *, symmetric: bool, offset: float = 0) -> float:
    scheme = Scheme(bits=bits, group=group, symmetric=symmetric)  # type: ignore[arg-type]
    weight = gaussian(32, 512) + offset
    return relative_error(weight, rtn.quantize(weight, scheme))


@pytest.mark.parametrize("symmetric", [True, False])
def test_error_shrinks_with_bits_and_with_smaller_groups(symmetric: bool) -> None:
    four, eight = (
        [rounding_error(bits, group, symmetric=symmetric) for group in (32, 64, 128)]
        for bits in (4, 8)
    )
    assert 0.07 < four[0] < four[1] < four[2] < 0.13
    assert eight[0] < eight[1] < eight[2] < four[0] / 10


def test_zero_points_help_a_weight_that_is_not_centred() -> None:
    with_zeros, without = (rounding_error(4, 32, symmetric=s, offset=0.1) for s in (False, True))
    assert with_zeros < 0.7 * without


@every_scheme
def test_no_group_is_worse_than_rounded_and_the_whole_is_better(scheme: Scheme) -> None:
    weight = heavy_tailed(32, 4 * scheme.group + 5)
    codes, plain = searched(weight, scheme), rtn.quantize(weight, scheme)
    assert bool((group_errors(weight, codes) <= group_errors(weight, plain) * 1.0001).all())
    most = 0.99 if scheme.bits == 4 else 0.995
    assert squared_error(weight, codes) < most * squared_error(weight, plain)


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_search_by_importance_lowers_the_error_where_it_matters(scheme: Scheme) -> None:
    weight = heavy_tailed(16, 256)
    importance = torch.rand(256, generator=torch.Generator().manual_seed(0)) ** 4

    def cost(searched_with: Tensor) -> float:
        codes = rtn.quantize(weight, scheme, importance=searched_with)
        return float(((weight - dequantize(codes)).square() * importance).sum())

    assert cost(importance) < 0.95 * cost(torch.ones(256))


def test_search_among_inputs_that_do_not_matter_keeps_the_extremes() -> None:
    scheme, weight = Scheme(bits=4, group=32), gaussian(4, 64)
    codes = rtn.quantize(weight, scheme, importance=torch.zeros(64))
    assert torch.equal(codes.scales, rtn.quantize(weight, scheme).scales)

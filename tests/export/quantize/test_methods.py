"""Properties that all methods of rounding share."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.export.quantize.low_bit import SCHEMES, label
from tests.export.quantize.weights import (
    correlated_inputs,
    gaussian,
    heavy_tailed,
    on_the_grid,
    quantize_gptq,
)
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.quantize import gptq, hqq, rtn
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
    "hqq": hqq.quantize,
    "gptq": calibrated,
    "refined": refined,
}

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)
every_method = pytest.mark.parametrize("name", METHODS)
by_group = pytest.mark.parametrize("name", ["rtn", "searched", "hqq"])


@every_scheme
@pytest.mark.parametrize("name", ["rtn", "hqq"])
def test_numbers_on_the_grid_are_exact(name: str, scheme: Scheme) -> None:
    weight = on_the_grid(scheme, 5, 2 * scheme.group)
    assert torch.equal(dequantize(METHODS[name](weight, scheme)), weight)


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


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@every_method
def test_a_weight_that_is_not_finite_is_rejected(name: str, number: float) -> None:
    weight = gaussian(2, 32)
    weight[1, 5] = number
    with pytest.raises(ExportError, match="cannot be quantized"):
        METHODS[name](weight, Scheme(bits=4, group=32))

import math

import pytest
import torch
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import gaussian, heavy_tailed, on_the_grid, squared_error

from ortolan.export.errors import ExportError
from ortolan.export.quantize import hqq, rtn
from ortolan.export.quantize.blocks import Codes, dequantize, into_groups
from ortolan.export.scheme import Scheme

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_error_on_a_heavy_tailed_weight_is_below_that_of_rounding(scheme: Scheme) -> None:
    weight = heavy_tailed(32, 4 * scheme.group)
    error = squared_error(weight, hqq.quantize(weight, scheme))
    assert error < 0.96 * squared_error(weight, rtn.quantize(weight, scheme))


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_errors_that_stand_help_the_rest(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(64, 512)
    error = squared_error(weight, hqq.quantize(weight, scheme))
    monkeypatch.setattr(hqq, "STIFFNESS", 1e-6)  # none stands: least squares
    assert error < 0.995 * squared_error(weight, hqq.quantize(weight, scheme))


@every_scheme
def test_no_group_is_worse_than_rounded(scheme: Scheme) -> None:
    weight = gaussian(8, 2 * scheme.group + 5)

    def errors(codes: Codes) -> torch.Tensor:
        return into_groups(weight - dequantize(codes), scheme.group).square().sum(-1)

    got, rounded = errors(hqq.quantize(weight, scheme)), errors(rtn.quantize(weight, scheme))
    assert bool((got <= rounded * 1.0001).all())
    assert bool((got < rounded * 0.999).any())


@every_scheme
def test_numbers_on_the_grid_are_exact(scheme: Scheme) -> None:
    weight = on_the_grid(scheme, 5, 2 * scheme.group)
    assert torch.equal(dequantize(hqq.quantize(weight, scheme)), weight)


@every_scheme
def test_short_last_group_is_fitted_like_a_weight_of_its_own(scheme: Scheme) -> None:
    weight = heavy_tailed(8, 256 + 9)
    codes, alone = hqq.quantize(weight, scheme), hqq.quantize(weight[:, 256:], scheme)
    assert torch.equal(codes.values[:, 256:], alone.values)
    torch.testing.assert_close(codes.scales[:, -1:], alone.scales)


@every_scheme
def test_group_of_zeros_is_exact(scheme: Scheme) -> None:
    weight = gaussian(3, 2 * scheme.group)
    weight[:, : scheme.group] = 0
    codes = hqq.quantize(weight, scheme)
    assert not dequantize(codes)[:, : scheme.group].any()
    assert bool(codes.scales.isfinite().all())


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_do_not_depend_on_the_size_of_the_weight(size: float, symmetric: bool) -> None:
    scheme, weight = Scheme(bits=4, group=32, symmetric=symmetric), heavy_tailed(4, 64)
    wanted, got = hqq.quantize(weight, scheme), hqq.quantize(weight * size, scheme)
    assert float((got.values != wanted.values).float().mean()) < 0.02


def test_chunks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, weight = Scheme(bits=4, group=32, symmetric=False), heavy_tailed(7, 96)
    wanted = hqq.quantize(weight, scheme)
    monkeypatch.setattr(rtn, "CHUNK", 200)
    got = hqq.quantize(weight, scheme)
    assert torch.equal(got.values, wanted.values)
    assert torch.equal(got.scales, wanted.scales)


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_weight_that_is_not_finite_is_refused(number: float) -> None:
    weight = gaussian(2, 32)
    weight[0, 31] = number
    with pytest.raises(ExportError, match="cannot be quantized"):
        hqq.quantize(weight, Scheme(bits=4, group=32))

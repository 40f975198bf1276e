"""GPTQ, and the sweeps that refine its codes."""

import dataclasses
import itertools
import math

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import correlated_inputs, gaussian, output_error, quantize_gptq
from tests.refusals import refusal
from torch import Tensor

from ortolan.export.quantize import gptq, refine, rtn
from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.scheme import Scheme

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)

INPUTS = 300
"""More than two parts of columns, and a multiple of no group."""


def as_published(weight: Tensor, hessian: Tensor, scales: Codes, damping: float) -> Tensor:
    """Codes by the recipe of the paper, column by column in float64."""
    damped = hessian.double()
    damped += damping * damped.diagonal().mean() * torch.eye(len(damped))
    order = damped.diagonal().argsort(descending=True, stable=True)
    inverse = torch.linalg.inv(damped[order][:, order])
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, values = weight.double()[:, order], torch.zeros_like(weight)
    scheme = scales.scheme
    for k, column in enumerate(order.tolist()):
        group = column // scheme.group
        scale = scales.scales[:, group].double()
        zero = scheme.middle if scales.zeros is None else scales.zeros[:, group].double()
        code = (rest[:, k] / scale + zero).round().clamp(0, scheme.largest)
        error = (rest[:, k] - (code - zero) * scale) / factor[k, k]
        rest[:, k:] -= error[:, None] * factor[k, k:]
        values[:, column] = code.float()
    return values


@every_scheme
def test_codes_are_those_of_the_published_recipe(scheme: Scheme) -> None:
    weight, x = gaussian(12, INPUTS), correlated_inputs(1000, INPUTS)
    hessian = x.T @ x
    codes = quantize_gptq(weight, hessian.clone(), scheme, damping=0.02)
    wanted = as_published(weight, hessian, codes, 0.02)
    # A tie that falls the other way changes all later columns.
    assert float((codes.values != wanted).float().mean()) < (0.002 if scheme.bits == 4 else 0.02)


@every_scheme
def test_error_of_outputs_is_below_that_of_rounding(scheme: Scheme) -> None:
    weight, x = gaussian(16, INPUTS), correlated_inputs(1000, INPUTS)
    codes = quantize_gptq(weight, x.T @ x, scheme)
    searched = rtn.quantize(weight, scheme, importance=x.square().mean(0))
    for rounded in (rtn.quantize(weight, scheme), searched):
        assert output_error(weight, codes, x) < 0.5 * output_error(weight, rounded, x)


@every_scheme
def test_inputs_that_have_nothing_to_do_with_each_other_are_rounded_to_nearest(
    scheme: Scheme,
) -> None:
    weight = gaussian(8, INPUTS)
    codes = quantize_gptq(weight, torch.eye(INPUTS), scheme, damping=0.0)
    rounded = rtn.quantize(weight, scheme, importance=torch.ones(INPUTS))
    assert torch.equal(codes.values, rounded.values)
    assert torch.equal(codes.scales, rounded.scales)


def test_input_that_was_never_active_is_rounded_to_nearest() -> None:
    scheme = Scheme(bits=4, group=32)
    weight, x = gaussian(8, 96), correlated_inputs(400, 96)
    dead = [0, 50, 95]
    x[:, dead] = 0
    codes = quantize_gptq(weight, x.T @ x, scheme)
    steps = weight / codes.scales.repeat_interleave(32, 1)
    assert torch.equal(codes.values[:, dead].float(), (steps.round() + 8).clamp(0, 15)[:, dead])
    assert (codes.values.float() != (steps.round() + 8).clamp(0, 15)).any()


def test_calibration_without_any_activity_is_rounded_to_nearest() -> None:
    scheme, weight = Scheme(bits=4, group=64), gaussian(4, 64)
    codes = quantize_gptq(weight, torch.zeros(64, 64), scheme)
    rounded = rtn.quantize(weight, scheme, importance=torch.ones(64))
    assert torch.equal(codes.values, rounded.values)


@every_scheme
def test_scales_are_searched_by_the_size_of_the_inputs(scheme: Scheme) -> None:
    weight, x = gaussian(8, INPUTS), correlated_inputs(1000, INPUTS)
    hessian = x.T @ x
    codes = quantize_gptq(weight, hessian.clone(), scheme, damping=0.0)
    searched = rtn.quantize(weight, scheme, importance=hessian.diagonal().clone())
    assert torch.equal(codes.scales, searched.scales)


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_codes_do_not_depend_on_the_size_of_the_hessian(size: float) -> None:
    scheme = Scheme(bits=4, group=32)
    weight, x = gaussian(8, 160), correlated_inputs(500, 160)
    hessian = x.T @ x
    wanted = quantize_gptq(weight, hessian * size, scheme)
    got = quantize_gptq(weight, hessian, scheme)
    assert float((got.values != wanted.values).float().mean()) < 0.005


def test_one_factor_serves_several_weights_and_some_rows_at_a_time() -> None:
    scheme = Scheme(bits=4, group=32, symmetric=False)
    weight, x = gaussian(10, 160), correlated_inputs(500, 160)
    hessian = x.T @ x
    wanted = quantize_gptq(weight, hessian.clone(), scheme)
    factor = gptq.factorize(hessian)
    for rows in (slice(0, 6), slice(6, 10)):
        part = gptq.round_columns(weight[rows], factor, scheme)
        assert torch.equal(part.scales, wanted.scales[rows])
        # Products of other shapes sum in another order.
        assert float((part.values != wanted.values[rows]).float().mean()) < 0.005


def pair(place: tuple[int, int], number: float) -> Tensor:
    """A unit matrix with one number in two places."""
    hessian = torch.eye(32)
    hessian[place] = hessian[place[::-1]] = number
    return hessian


HESSIANS = {
    "infinity": pair((3, 3), math.inf),
    "not a number": pair((20, 4), math.nan),
    "one that no inputs have": pair((3, 9), 2.0),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_a_hessian_that_cannot_be_factorized_is_refused(
    name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: gptq.factorize(HESSIANS[name])) == snapshot


# --- refined --------------------------------------------------------------------------------------

every_format_of_4_bits = pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)

DAMPING = 0.02


def prepared(scheme: Scheme, *, rows: int = 12) -> tuple[Tensor, Tensor, gptq.Factor, Codes]:
    """A weight, its damped Hessian, the factor of that and the codes of GPTQ."""
    weight, x = gaussian(rows, INPUTS), correlated_inputs(1000, INPUTS)
    hessian = x.T @ x
    factor = gptq.factorize(hessian.clone(), damping=DAMPING)
    damped = hessian.double()
    damped += DAMPING * damped.diagonal().mean() * torch.eye(INPUTS)
    return weight, damped, factor, gptq.round_columns(weight, factor, scheme)


def errors(weight: Tensor, codes: Codes, hessian: Tensor) -> Tensor:
    """The minimized error of each row."""
    difference = weight.double() - dequantize(codes).double()
    return ((difference @ hessian) * difference).sum(1)


@every_scheme
def test_no_sweep_raises_the_error_of_any_row_and_three_lower_it(scheme: Scheme) -> None:
    weight, hessian, factor, codes = prepared(scheme)
    first = before = errors(weight, codes, hessian)
    for _ in range(3):
        codes = refine.refine(weight, codes, factor)
        after = errors(weight, codes, hessian)
        assert bool((after <= before * (1 + 1e-4)).all())
        before = after
    if scheme.bits == 4:
        assert float(before.sum()) < 0.99 * float(first.sum())


@every_format_of_4_bits
def test_no_code_next_to_one_that_was_found_and_no_scale_near_it_is_better(
    scheme: Scheme,
) -> None:
    weight, hessian, factor, found = prepared(scheme, rows=2)
    for _ in range(20):
        found = refine.refine(weight, found, factor)
    least = errors(weight, found, hessian)
    for column, move in itertools.product(range(INPUTS), (-1, 1)):
        values = found.values.int()
        values[:, column] = (values[:, column] + move).clamp(0, scheme.largest)
        other = dataclasses.replace(found, values=values.to(torch.uint8))
        assert bool((errors(weight, other, hessian) >= least * (1 - 1e-4)).all())
    for group, ratio in itertools.product(range(found.scales.shape[1]), (0.99, 1.01)):
        scales = found.scales.clone()
        scales[:, group] *= ratio
        other = dataclasses.replace(found, scales=scales)
        assert bool((errors(weight, other, hessian) > least).all())


@every_scheme
def test_zero_points_and_what_was_given_stay(scheme: Scheme) -> None:
    weight, _, factor, codes = prepared(scheme, rows=1)
    given = dataclasses.replace(codes, values=codes.values.clone(), scales=codes.scales.clone())
    was = weight.clone()
    found = refine.refine(weight, codes, factor)
    assert torch.equal(weight, was)
    assert torch.equal(codes.values, given.values)
    assert torch.equal(codes.scales, given.scales)
    assert not torch.equal(found.scales, codes.scales)
    assert found.zeros is codes.zeros
    assert int(found.values.max()) <= scheme.largest


def test_rows_do_not_depend_on_each_other() -> None:
    weight, _, factor, codes = prepared(Scheme(bits=4, group=64, symmetric=False), rows=7)
    whole = refine.refine(weight, codes, factor)
    for rows in (slice(0, 3), slice(3, 6), slice(6, 7)):
        fields = {name: getattr(codes, name)[rows] for name in ("values", "scales", "zeros")}
        part = dataclasses.replace(codes, **fields)
        found = refine.refine(weight[rows], part, factor)
        torch.testing.assert_close(found.scales, whole.scales[rows], rtol=1e-3, atol=1e-6)
        # Products of other shapes sum in another order.
        assert float((found.values != whole.values[rows]).float().mean()) < 0.01

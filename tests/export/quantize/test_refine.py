import dataclasses

import pytest
import torch
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import correlated_inputs, gaussian
from torch import Tensor

from ortolan.export.quantize import gptq, refine
from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.scheme import Scheme

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)
every_format_of_4_bits = pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)

INPUTS = 300
"""A multiple of no group."""

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
def test_no_sweep_raises_the_error_of_any_row(scheme: Scheme) -> None:
    weight, hessian, factor, codes = prepared(scheme)
    before = errors(weight, codes, hessian)
    for _ in range(4):
        codes = refine.refine(weight, codes, factor, sweeps=1)
        after = errors(weight, codes, hessian)
        assert bool((after <= before * (1 + 1e-4)).all())
        before = after


@every_format_of_4_bits
def test_error_of_outputs_is_below_that_of_gptq(scheme: Scheme) -> None:
    weight, hessian, factor, codes = prepared(scheme)
    refined = refine.refine(weight, codes, factor, sweeps=3)
    before, after = (errors(weight, each, hessian).sum() for each in (codes, refined))
    assert float(after) < 0.99 * float(before)


@every_format_of_4_bits
def test_no_code_next_to_one_that_was_found_is_better(scheme: Scheme) -> None:
    weight, hessian, factor, codes = prepared(scheme, rows=2)
    found = refine.refine(weight, codes, factor, sweeps=20)
    least = errors(weight, found, hessian)
    for column in range(INPUTS):
        for move in (-1, 1):
            values = found.values.int()
            values[:, column] = (values[:, column] + move).clamp(0, scheme.largest)
            other = dataclasses.replace(found, values=values.to(torch.uint8))
            assert bool((errors(weight, other, hessian) >= least * (1 - 1e-4)).all())


@every_format_of_4_bits
def test_no_scale_near_one_that_was_found_is_better(scheme: Scheme) -> None:
    weight, hessian, factor, codes = prepared(scheme, rows=2)
    found = refine.refine(weight, codes, factor, sweeps=20)
    least = errors(weight, found, hessian)
    for group in range(found.scales.shape[1]):
        for ratio in (0.99, 1.01):
            scales = found.scales.clone()
            scales[:, group] *= ratio
            other = dataclasses.replace(found, scales=scales)
            assert bool((errors(weight, other, hessian) > least).all())


@every_scheme
def test_zero_points_and_what_was_given_stay(scheme: Scheme) -> None:
    weight, _, factor, codes = prepared(scheme)
    given = dataclasses.replace(codes, values=codes.values.clone(), scales=codes.scales.clone())
    was = weight.clone()
    found = refine.refine(weight, codes, factor)
    assert torch.equal(weight, was)
    assert torch.equal(codes.values, given.values)
    assert torch.equal(codes.scales, given.scales)
    assert not torch.equal(found.scales, codes.scales)
    assert found.zeros is codes.zeros
    assert int(found.values.max()) <= scheme.largest


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, _, factor, codes = prepared(Scheme(bits=4, group=64, symmetric=False), rows=7)
    whole = refine.refine(weight, codes, factor)
    monkeypatch.setattr(refine, "NUMBERS", 3 * INPUTS)
    parts = refine.refine(weight, codes, factor)
    torch.testing.assert_close(parts.scales, whole.scales, rtol=1e-3, atol=1e-6)
    # Products of other shapes sum in another order.
    assert float((parts.values != whole.values).float().mean()) < 0.01

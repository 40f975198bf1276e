import math

import numpy as np
import pytest
import torch
from onnx import helper
from tests.export.quantize.low_bit import Array, constant, graph, run
from tests.export.quantize.weights import gaussian

from ortolan.export.errors import ExportError
from ortolan.export.quantize.channel import ZERO_POINT, quantize_channels


def product(codes: torch.Tensor, scales: torch.Tensor, x: Array) -> Array:
    node = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "codes", "scales", "zero"], ["y"], domain="com.microsoft"
    )
    constants = [
        constant("codes", codes.numpy()),
        constant("scales", scales.numpy()),
        constant("zero", np.array(ZERO_POINT, np.uint8)),
    ]
    return run(graph([node], constants, {"x": x}), {"x": x})[0]


def numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What codes stand for, `(N, K)`."""
    return (codes.T.to(scales.dtype) - ZERO_POINT) * scales[:, None]


def test_numbers_move_by_half_a_step_of_their_output() -> None:
    weight = gaussian(6, 40) * torch.tensor([1.0, 1e-3, 1e3, 1.0, 1e-30, 1e30])[:, None]
    codes, scales = quantize_channels(weight)
    assert codes.shape == (40, 6)
    assert codes.is_contiguous()
    assert codes.dtype == torch.uint8
    off = (numbers(codes, scales) - weight).abs()
    assert bool((off <= scales[:, None] * 0.5001).all())
    assert (codes.int() - ZERO_POINT).abs().amax(0).tolist() == [127] * 6
    assert int(codes.min()) == 1


def test_output_of_zeros_is_exact() -> None:
    weight = gaussian(3, 16)
    weight[1] = 0
    codes, scales = quantize_channels(weight)
    assert codes[:, 1].tolist() == [ZERO_POINT] * 16
    assert float(scales[1]) == 0


@pytest.mark.parametrize("width", [64, 37])
def test_product_is_off_by_no_more_than_the_rounding_of_activations(width: int) -> None:
    codes, scales = quantize_channels(gaussian(9, width))
    x = np.random.default_rng(0).standard_normal((2, 3, width)).astype(np.float32)
    weight = numbers(codes, scales).numpy()
    off = np.abs(product(codes, scales, x) - x @ weight.T)
    step = (x.max() - x.min()) / 255  # one for the whole tensor
    # The zero point is rounded as well.
    assert (off <= step * np.abs(weight).sum(1)).all()
    assert off.max() > 0.1 * step * np.linalg.norm(weight, axis=1).min()


def test_product_with_activations_on_the_kernels_grid_is_exact() -> None:
    codes, scales = quantize_channels(gaussian(9, 37))
    x = np.random.default_rng(1).integers(-128, 128, (5, 37)).astype(np.float32)
    x[0, :2] = -128, 127
    weight = numbers(codes, scales.double()).numpy()
    wanted = x @ weight.T
    got = product(codes, scales, x)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("rows", [1, 16])
def test_pairs_of_the_largest_products_do_not_saturate(rows: int) -> None:
    # with signed weights a kernel may add two products in 16 bits
    codes, scales = quantize_channels(torch.ones(8, 64))
    x = np.full((rows, 64), 255, np.float32)
    x[:, 0] = 0
    np.testing.assert_allclose(product(codes, scales, x), 63 * 255, rtol=1e-6)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weight_that_is_not_finite_is_refused(number: float) -> None:
    weight = gaussian(2, 32)
    weight[1, 5] = number
    with pytest.raises(ExportError, match=r"^weight: expected finite numbers"):
        quantize_channels(weight)

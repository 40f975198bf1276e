import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.export.quantize.low_bit import Array, constant, graph, run
from tests.export.quantize.weights import gaussian
from torch import nn

from ortolan.export.errors import ExportError
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.quantize.channel import LARGEST, quantize_channels
from ortolan.export.weights.blob import BlobWriter
from ortolan.export.weights.codes import write_channels
from ortolan.modeling.weights import module_weights
from ortolan.runtime.graph.products import CODE_MIDDLE


def product(codes: torch.Tensor, scales: torch.Tensor, steps: Array) -> Array:
    """The product with whole numbers from -128 to 127."""
    x = (steps + CODE_MIDDLE).astype(np.uint8)
    node = helper.make_node(
        "MatMulIntegerToFloat",
        ["x", "codes", "one", "scales", "middle"],
        ["y"],
        domain="com.microsoft",
    )
    constants = [
        constant("codes", codes.numpy()),
        constant("one", np.array(1, np.float32)),
        constant("scales", scales.numpy()),
        constant("middle", np.array(CODE_MIDDLE, np.uint8)),
    ]
    return run(graph([node], constants, {"x": x}), {"x": x})[0]


def numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantized codes, `(N, K)`."""
    return codes.T * scales[:, None]


def test_numbers_move_by_half_a_step_of_their_output() -> None:
    weight = gaussian(6, 40) * torch.tensor([1.0, 1e-3, 1e3, 1.0, 1e-30, 1e30])[:, None]
    codes, scales = quantize_channels(weight)
    assert codes.shape == (40, 6)
    assert codes.is_contiguous()
    assert codes.dtype == torch.int8
    off = (numbers(codes, scales) - weight).abs()
    assert bool((off <= scales[:, None] * 0.5001).all())


def test_steps_are_as_fine_as_they_can_be() -> None:
    weight = torch.zeros(4, 16)  # the last output is zero
    weight[0, 3] = -1  # alone
    weight[1, 4:6] = torch.tensor([0.75, 0.25])  # neighbors that add up
    weight[2, 4:6] = torch.tensor([1.0, -1.0])  # and that do not
    codes, scales = quantize_channels(weight)
    assert scales.tolist() == [np.float32(1 / LARGEST)] * 3 + [0]
    assert codes[3, 0] == -LARGEST
    assert codes[4:6, 1].tolist() == [95, 32]
    assert codes[4:6, 2].tolist() == [LARGEST, -LARGEST]
    assert not codes[:, 3].any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 40), spread=st.floats(0, 4))
def test_neighbors_never_add_up_to_what_saturates(seed: int, width: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, width, generator=generator).abs() ** spread
    weight[1::2] *= -1
    codes, _ = quantize_channels(weight)
    sums = codes[:-1].int() + codes[1:].int()
    assert not sums.numel() or int(sums.abs().max()) * 255 <= 2**15 - 1


@pytest.mark.parametrize("width", [64, 37])
def test_product_of_codes_is_exact(width: int) -> None:
    codes, scales = quantize_channels(gaussian(9, width))
    x = np.random.default_rng(1).integers(-128, 128, (5, width)).astype(np.float32)
    weight = numbers(codes, scales.double()).numpy()
    wanted = x @ weight.T
    got = product(codes, scales, x)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("pair", [(1.0, 1.0), (-1.0, -1.0), (1.0, 0.5), (-0.25, -1.0)])
def test_pairs_of_the_largest_products_do_not_saturate(
    rows: int, pair: tuple[float, float]
) -> None:
    # a kernel may add the products of two neighbors in 16 bits
    weight = torch.tensor(pair).repeat(8, 32)
    codes, scales = quantize_channels(weight)
    x = np.full((rows, 64), 127, np.float32)
    x[:, 0] = -128
    wanted = x @ numbers(codes, scales.double()).numpy().T
    np.testing.assert_allclose(product(codes, scales, x), wanted, rtol=1e-6)


def test_error_of_written_codes_is_that_of_their_numbers(tmp_path: Path) -> None:
    module = nn.Linear(37, 9, bias=False)
    module.weight.data = weight = gaussian(9, 37)
    with BlobWriter(tmp_path, sizes={}, sums=WeightSums(())) as writer:
        (written,) = write_channels(writer, module_weights(module), ["weight"])
    off = numbers(*quantize_channels(weight)) - weight
    assert (written.name, written.bits, written.group) == ("weight", 8, None)
    assert written.error == pytest.approx(float(off.norm() / weight.norm()))
    assert 0.001 < written.error < 0.02


def test_weight_that_is_not_finite_is_refused() -> None:
    weight = gaussian(2, 32)
    weight[1, 5] = math.inf
    with pytest.raises(ExportError, match="cannot be quantized"):
        quantize_channels(weight)

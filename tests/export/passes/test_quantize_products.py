import numpy as np
import pytest
import torch
from tests.export.passes.graphs import Array, assert_kept, normal, operators, parsed, rewritten, run

from ortolan.export.passes.quantize_products import CHANNEL_SCALES, CHANNELS, QuantizeProducts
from ortolan.export.quantize.channel import quantize_channels

V, W = normal(3, 64), normal(5, 64, seed=1)
X = normal(1, 6, 64, seed=2).numpy()

PRODUCTS = """
g (float[1, s, 64] x, WEIGHTS) => (float[1, s, 3] a, float[1, s, 5] b) {
    a = com.microsoft.FusedMatMul <transB = 1> (x, v)
    b = com.microsoft.FusedMatMul <transB = 1> (x, w)
}
"""


def stored(**weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights, and what a bundle stores of them."""
    coded = dict(weights)
    for name, weight in weights.items():
        coded[name + CHANNELS], coded[name + CHANNEL_SCALES] = quantize_channels(weight)
    return coded


def quantized(x: Array) -> list[Array]:
    model = parsed(PRODUCTS, v=V, w=W)
    QuantizeProducts({"v", "w"})(model)
    return run(model, stored(v=V, w=W), x=x)


def error(got: Array, x: Array, weight: torch.Tensor) -> Array:
    """The error of each row of products, relative to its length."""
    wanted = x @ weight.numpy().T
    error: Array = np.linalg.norm(got - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)
    return error


def test_products_of_one_input_share_its_codes() -> None:
    model = parsed(PRODUCTS, v=V, w=W)
    rewritten(QuantizeProducts({"v", "w"}), model, stored(v=V, w=W), x=X, atol=0.6)
    assert operators(model).count("QuantizeLinear") == 1
    assert operators(model).count("MatMulIntegerToFloat") == 2
    assert not {"v", "w"} & model.graph.initializers.keys()


def test_large_rows_do_not_coarsen_others() -> None:
    x = X * np.array([1e6, 1, 1e-6, 1, 1e3, 1], np.float32)[:, None]
    for got, plain, weight in zip(quantized(x), quantized(X), (V, W), strict=True):
        assert error(got, x, weight).max() < 0.03
        np.testing.assert_allclose(error(got, x, weight), error(plain, X, weight), rtol=1e-3)


def test_a_row_is_the_same_to_the_bit_among_others() -> None:
    together = quantized(X)
    for row in range(X.shape[1]):
        for whole, alone in zip(together, quantized(X[:, row : row + 1]), strict=True):
            assert (whole[:, row] == alone[:, 0]).all()


@pytest.mark.parametrize("number", [0.0, 1e-38, 1e36])
def test_rows_of_extreme_numbers_are_finite(number: float) -> None:
    x = X.copy()
    x[0, 1] = number
    for got in quantized(x):
        assert np.isfinite(got).all()
    assert not quantized(X * 0)[0].any()


def test_a_row_that_is_not_finite_stays_so() -> None:
    x = X.copy()
    x[0, 1:3, 3] = np.inf, -np.inf
    (got, _), (plain, _) = quantized(x), quantized(X)
    assert not np.isfinite(got[0, 1:3]).any()
    assert (got[0, 3:] == plain[0, 3:]).all()


def test_other_products_stay() -> None:
    assert_kept(QuantizeProducts({"u"}), parsed(PRODUCTS, v=V, w=W))

import numpy as np
import pytest
from tests.export.passes.graphs import normal, operators, parsed, run

from ortolan.export.derived import Recipe, recipes_of
from ortolan.export.passes.transpose_weights import TransposeWeights

W, B = normal(4, 6), normal(6, seed=2)
X = normal(2, 3, 4, seed=1).numpy()


def test_a_product_reads_the_weight_with_a_row_for_each_output() -> None:
    model = parsed("g (float[b, s, 4] x, WEIGHTS) => (float[b, s, 6] y) { y = MatMul (x, w) }", w=W)
    before = run(model, {"w": W}, x=X)
    assert TransposeWeights()(model).modified
    assert operators(model) == ["FusedMatMul"]
    assert model.graph[0].attributes.get_int("transB") == 1
    assert recipes_of([model]) == {"T.w": Recipe(("w",), transposed=True)}
    assert [value.name for value in model.graph.outputs] == ["y"]
    np.testing.assert_allclose(run(model, {"w": W}, x=X)[0], before[0], rtol=1e-5)
    assert not TransposeWeights()(model).modified


VIEWS = """
g (float[b, s, 4] x, WEIGHTS) => (float[b, s, 6] y)
<int64[2] flat = {-1, 4}, int64[3] back = {2, 3, 6}> {
    rows = Reshape (x, flat)
    sums = Gemm (rows, w, b)
    y = Reshape (sums, back)
}
"""


def test_a_sum_of_product_and_bias_loses_the_views_around_it() -> None:
    model = parsed(VIEWS, w=W, b=B)
    weights = {"w": W, "b": B}
    before = run(model, weights, x=X)
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    y.shape = type(y.shape)([*(x.shape or ())[:2], 6]) if y.shape else None
    assert TransposeWeights()(model).modified
    assert operators(model) == ["Reshape", "FusedMatMul", "Add"]
    assert not model.graph[0].outputs[0].uses()
    np.testing.assert_allclose(run(model, weights, x=X)[0], before[0], rtol=1e-4, atol=1e-6)


FLAT = "g (float[r, 4] x, WEIGHTS) => (float[r, 6] y) { y = Gemm ATTRIBUTES (x, w, b) }"


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_of_rows_stays_one_of_rows(turned: bool) -> None:
    weights = {"w": W.T.contiguous() if turned else W, "b": B}
    model = parsed(FLAT.replace("ATTRIBUTES", f"<transB = {int(turned)}>"), **weights)
    before = run(model, weights, x=X[0])
    assert TransposeWeights()(model).modified
    assert operators(model) == ["FusedMatMul", "Add"]
    assert bool(recipes_of([model])) != turned
    np.testing.assert_allclose(run(model, weights, x=X[0])[0], before[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attributes", ["<alpha = 2.0>", "<beta = 0.5>"])
def test_a_scaled_sum_stays(attributes: str) -> None:
    model = parsed(FLAT.replace("ATTRIBUTES", attributes), w=W, b=B)
    assert not TransposeWeights()(model).modified


def test_a_product_of_two_computed_tensors_stays() -> None:
    text = "g (float[b, s, 4] x, float[4, 6] w) => (float[b, s, 6] y) { y = MatMul (x, w) }"
    assert not TransposeWeights()(parsed(text)).modified
